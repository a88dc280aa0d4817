//! Tests of the readers of published data sets: their entries and error messages, on small files
//! written by the tests, and on the real files.

mod coco;
mod damaged;
mod data_sets;
mod reading;
mod vqa;
mod web;
mod wikidata;
mod wit;
