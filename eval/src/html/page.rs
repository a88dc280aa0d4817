//! The page frame: head, style, script, table of contents.

use super::writer::Html;

const STYLE: &str = include_str!("style.css");
/// The colours of all pages as CSS variables, for light and dark mode.
pub const PALETTE: &str = include_str!("palette.css");
const SCRIPT: &str = include_str!("script.js");

/// Content security policy: the page cannot load anything, whatever its texts contain.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; \
                      script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

/// A page as a list of sections.
#[derive(Debug)]
pub(super) struct Page {
    title: String,
    lead: String,
    sections: Vec<Section>,
}

#[derive(Debug)]
struct Section {
    heading: String,
    body: Html,
}

impl Page {
    /// Creates an empty page; `lead` is the text below the title, which may be empty.
    pub(super) fn new(title: &str, lead: &str) -> Self {
        Self { title: title.to_owned(), lead: lead.to_owned(), sections: Vec::new() }
    }

    /// Adds a section, unless it is empty.
    pub(super) fn section(&mut self, heading: &str, write: impl FnOnce(&mut Html)) {
        let mut body = Html::default();
        write(&mut body);
        if !body.is_empty() {
            self.sections.push(Section { heading: heading.to_owned(), body });
        }
    }

    /// The whole document.
    pub(super) fn into_html(self) -> String {
        let mut html = Html::default();
        html.verbatim("<!DOCTYPE html>\n");
        html.node("html", &[("lang", "en")], |html| {
            html.node("head", &[], |html| self.head(html));
            html.node("body", &[], |html| self.body(html));
        });
        html.into_string() + "\n"
    }

    fn head(&self, html: &mut Html) {
        html.void("meta", &[("charset", "utf-8")]);
        let policy = [("http-equiv", "Content-Security-Policy"), ("content", POLICY)];
        html.void("meta", &policy);
        let viewport = [("name", "viewport"), ("content", "width=device-width, initial-scale=1")];
        html.void("meta", &viewport);
        html.void("meta", &[("name", "color-scheme"), ("content", "light dark")]);
        html.leaf("title", &[], &format!("{} – Engram", self.title));
        html.node("style", &[], |html| {
            html.verbatim(PALETTE);
            html.verbatim(STYLE);
        });
    }

    fn body(&self, html: &mut Html) {
        let id = |section: usize| format!("section-{}", section + 1);
        html.node("header", &[], |html| {
            html.node("div", &[("class", "title")], |html| {
                html.leaf("h1", &[], &self.title);
                // The script unhides the button; without the script it has no effect.
                let attributes = [("type", "button"), ("id", "theme"), ("hidden", "")];
                html.leaf("button", &attributes, "Dark");
            });
            if !self.lead.is_empty() {
                html.leaf("p", &[("class", "lead")], &self.lead);
            }
            html.node("nav", &[("aria-label", "Contents")], |html| {
                for (index, section) in self.sections.iter().enumerate() {
                    let target = format!("#{}", id(index));
                    html.leaf("a", &[("href", &target)], &section.heading);
                }
            });
        });
        html.node("main", &[], |html| {
            for (index, section) in self.sections.iter().enumerate() {
                let (id, heading_id) = (id(index), format!("heading-{}", index + 1));
                let attributes = [("id", &*id), ("aria-labelledby", &*heading_id)];
                html.node("section", &attributes, |html| {
                    html.leaf("h2", &[("id", &heading_id)], &section.heading);
                    html.append(&section.body);
                });
            }
        });
        html.node("footer", &[], |html| {
            html.leaf("p", &[], concat!("Made by Engram ", env!("CARGO_PKG_VERSION"), "."));
        });
        html.node("script", &[], |html| html.verbatim(SCRIPT));
    }
}
