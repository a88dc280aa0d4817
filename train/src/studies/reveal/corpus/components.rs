//! Connected components of documents and images. A caption, question or entry that names a document
//! and an image connects them.
//!
//! Images are identified by their bytes, so that copies of an image, and all documents that show
//! it, get the same split.

use std::collections::HashMap;

use engram_data::groups::DisjointSets;

/// The component of each document and of each image.
pub(super) struct Components {
    /// The component of each document, by its id.
    by_document: HashMap<String, String>,
    /// The component of each image, by its index.
    by_image: HashMap<usize, String>,
}

/// An image: its name in `data.path`, and its index.
pub(super) type NamedImage<'a> = (&'a str, usize);

/// A document, or the index of an image.
#[derive(PartialEq, Eq, Hash)]
enum Node<'a> {
    Document(&'a str),
    Image(usize),
}

impl Components {
    /// Connects the document and the image of each pair, if it has both.
    pub(super) fn new<'a>(
        pairs: impl Iterator<Item = (Option<&'a str>, Option<NamedImage<'a>>)>,
    ) -> Self {
        let mut indices: HashMap<Node<'a>, usize> = HashMap::new();
        // Documents before images, sorted by name.
        let mut names: Vec<(bool, &str)> = Vec::new();
        let mut connected = Vec::new();
        for (document, image) in pairs {
            let document = document.map(|name| (Node::Document(name), (false, name)));
            let image = image.map(|(name, index)| (Node::Image(index), (true, name)));
            let mut nodes_of_pair = [document, image].into_iter().flatten().map(|(node, name)| {
                let index = *indices.entry(node).or_insert(names.len());
                match names.get_mut(index) {
                    Some(first) => *first = name.min(*first),
                    None => names.push(name),
                }
                index
            });
            let (first, second) = (nodes_of_pair.next(), nodes_of_pair.next());
            connected.extend(first.zip(second));
        }
        let mut sets = DisjointSets::new(names.len());
        for (document, image) in connected {
            sets.join(document, image);
        }
        let mut name_of: HashMap<usize, (bool, &str)> = HashMap::new();
        for (index, name) in names.iter().enumerate() {
            let first = name_of.entry(sets.root(index)).or_insert(*name);
            *first = (*first).min(*name);
        }
        let (mut by_document, mut by_image) = (HashMap::new(), HashMap::new());
        for (node, index) in indices {
            let name = name_of[&sets.root(index)].1.to_owned();
            match node {
                Node::Document(document) => by_document.insert(document.to_owned(), name),
                Node::Image(index) => by_image.insert(index, name),
            };
        }
        Self { by_document, by_image }
    }

    /// The component of a document or an image; `None` if it is unknown. A component is named after
    /// its first document in alphabetical order, or its first image if it has no document.
    pub(super) fn of(&self, document: Option<&str>, image: Option<usize>) -> Option<&str> {
        let by_document = document.and_then(|document| self.by_document.get(document));
        let by_image = || image.and_then(|image| self.by_image.get(&image));
        by_document.or_else(by_image).map(String::as_str)
    }
}
