//! Tests and benchmarks of single crates depend on this crate. So cargo chooses the same features
//! of dependencies as for the program, and reuses the libraries of a release build.
