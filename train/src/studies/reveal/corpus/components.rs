//! Connected components of documents and images, linked by captions, questions and entries that
//! name both.
//!
//! Images are identified by their bytes, so that copies of an image, and all documents that show
//! it, get the same split.

use std::collections::HashMap;

use engram_data::groups::DisjointSets;

/// The component of each document and of each image.
pub(super) struct Components {
    of_document: HashMap<String, String>,
    of_picture: HashMap<usize, String>,
}

/// An image: its name in `data.path`, and its index.
pub(super) type Shown<'a> = (&'a str, usize);

#[derive(PartialEq, Eq, Hash)]
enum Node<'a> {
    Document(&'a str),
    Picture(usize),
}

impl Components {
    /// Connects the document and the image of each pair.
    pub(super) fn new<'a>(
        pairs: impl Iterator<Item = (Option<&'a str>, Option<Shown<'a>>)>,
    ) -> Self {
        let mut places: HashMap<Node<'a>, usize> = HashMap::new();
        // Documents before images, sorted by name.
        let mut names: Vec<(bool, &str)> = Vec::new();
        let mut joined = Vec::new();
        for (document, picture) in pairs {
            let document = document.map(|name| (Node::Document(name), (false, name)));
            let picture = picture.map(|(name, place)| (Node::Picture(place), (true, name)));
            let mut of_pair = [document, picture].into_iter().flatten().map(|(node, name)| {
                let place = *places.entry(node).or_insert(names.len());
                match names.get_mut(place) {
                    Some(known) => *known = name.min(*known),
                    None => names.push(name),
                }
                place
            });
            let (first, second) = (of_pair.next(), of_pair.next());
            joined.extend(first.zip(second));
        }
        let mut sets = DisjointSets::new(names.len());
        for (document, picture) in joined {
            sets.join(document, picture);
        }
        let mut name_of: HashMap<usize, (bool, &str)> = HashMap::new();
        for (place, name) in names.iter().enumerate() {
            let known = name_of.entry(sets.root(place)).or_insert(*name);
            *known = (*known).min(*name);
        }
        let (mut of_document, mut of_picture) = (HashMap::new(), HashMap::new());
        for (node, place) in places {
            let name = name_of[&sets.root(place)].1.to_owned();
            match node {
                Node::Document(document) => of_document.insert(document.to_owned(), name),
                Node::Picture(place) => of_picture.insert(place, name),
            };
        }
        Self { of_document, of_picture }
    }

    /// The component of a document or an image. A component is named after its first document in
    /// alphabetical order, or its first image if it has no document.
    pub(super) fn of(&self, document: Option<&str>, picture: Option<usize>) -> Option<&str> {
        let of_document = document.and_then(|document| self.of_document.get(document));
        let of_picture = || picture.and_then(|picture| self.of_picture.get(&picture));
        of_document.or_else(of_picture).map(String::as_str)
    }
}
