//! Pictures of GCompris: the unpacked Debian package `gcompris-qt-data`, or the folder `rcc` in it.
//! Its containers `explore_*.rcc` have pictures with a title, a paragraph and sometimes a sound;
//! `categorization.rcc` has several pictures of each kind of thing.

use std::collections::BTreeMap;
use std::path::Path;

use super::{Picture, Pictures, Sound, inside, rcc, thing, version};
use crate::{DataError, folder};

/// The start of all paths in the containers.
const ROOT: &str = "gcompris/src/activities/";
/// The folder of the pictures to sort.
const SORTED: &str = "categorization/resource/images/";

/// Reads the pictures of a folder. The images and sounds are in [`Pictures::files`].
///
/// # Errors
/// `Io`; `Malformed` for a damaged container, and for a folder without these containers
pub fn read(folder: &Path) -> Result<Pictures, DataError> {
    let root = inside(folder, "usr/share/gcompris-qt/rcc")?;
    let is_container = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name == "categorization.rcc" || name.starts_with("explore_") && name.ends_with(".rcc")
    };
    let mut files = BTreeMap::new();
    for container in folder::files(&root, &is_container)?.files {
        for (path, bytes) in rcc::read(&container)? {
            files.extend(path.strip_prefix(ROOT).map(|path| (path.to_owned(), bytes)));
        }
    }
    let mut output = Pictures {
        version: version(&root.join("../../doc/gcompris-qt-data")),
        ..Pictures::default()
    };
    for (path, bytes) in &files {
        if path.ends_with(".qml") && path.contains("/resource/board/") {
            let text = String::from_utf8_lossy(bytes);
            output.pictures.extend(text.split('{').filter_map(explored));
        }
        output.pictures.extend(sorted(path));
    }
    let credits: BTreeMap<String, Credit> = files.iter().flat_map(credits).collect();
    for mut picture in std::mem::take(&mut output.pictures) {
        (picture.licence, picture.origin) =
            credits.get(&picture.picture).cloned().unwrap_or_default();
        let paths = picture.sounds.iter().map(|sound| &sound.file).chain([&picture.image]);
        let paths: Vec<_> = paths.map(|path| path.to_string_lossy().into_owned()).collect();
        match paths.iter().find(|path| !files.contains_key(*path)) {
            Some(path) => output.faults.push(format!("{path}: no container has this file")),
            None => {
                output
                    .files
                    .extend(paths.into_iter().map(|path| (path.clone(), files[&path].clone())));
                output.pictures.push(picture);
            }
        }
    }
    if output.pictures.is_empty() {
        let remedy = "unpack the package gcompris-qt-data, and give its folder";
        return Err(DataError::of_file(folder, "has no pictures in containers", remedy));
    }
    Ok(output)
}

fn picture(path: &str, name: &str, text: &str) -> Picture {
    Picture {
        source: "gcompris",
        thing: thing(name),
        image: path.into(),
        text: text.to_owned(),
        picture: path.to_owned(),
        names: [("en".to_owned(), name.to_owned())].into(),
        ..Picture::default()
    }
}

/// Returns the picture of a block of a board, `{ "title": …, "text": …, "image2": … }`, whose
/// fields have a line each.
fn explored(block: &str) -> Option<Picture> {
    let field = |key: &str| -> Option<String> {
        let line = block.lines().find_map(|line| line.trim().strip_prefix(key))?;
        serde_json::from_str(&line[line.find('"')?..=line.rfind('"')?]).ok()
    };
    let path = |key| Some(field(key)?.strip_prefix("qrc:/")?.strip_prefix(ROOT)?.to_owned());
    let (image, title, text) = (path("\"image2\":")?, field("\"title\":")?, field("\"text\":")?);
    let file = path("\"audio\":").map(|path| path.replace(".$CA", ".ogg").into());
    let sounds = file.map(|file| Sound { file, ..Sound::default() }).into_iter().collect();
    let category = image.split('/').next().unwrap_or_default().to_owned();
    Some(Picture { sounds, category, ..picture(&image, &title, &text) })
}

/// Returns a picture to sort: `tools/measuringTape2.webp` is a measuring tape. Letters and numbers
/// are no things.
fn sorted(path: &str) -> Option<Picture> {
    let (category, file) = path.strip_prefix(SORTED)?.split_once('/')?;
    let stem =
        file.strip_suffix(".webp").filter(|_| !["alphabets", "numbers"].contains(&category))?;
    let mut name = String::new();
    for c in stem.trim_end_matches(|c: char| c.is_ascii_digit()).chars() {
        match c.is_uppercase() && !name.is_empty() {
            true => name.extend([' '].into_iter().chain(c.to_lowercase())),
            false => name.push(c),
        }
    }
    Some(Picture { category: category.to_owned(), ..picture(path, &name, &name) })
}

/// The licence of a file, and its author and address.
type Credit = (Option<String>, Option<String>);

/// Returns the credits of the files that a README names. It has paragraphs with `Copyright:`,
/// `License:`, `Source:`, and the names of the files below `Files:`.
fn credits((path, bytes): (&String, &Vec<u8>)) -> Vec<(String, Credit)> {
    let Some(folder) = path.strip_suffix("README") else { return Vec::new() };
    let mut credits = Vec::new();
    for paragraph in String::from_utf8_lossy(bytes).split("\n\n") {
        let fields = |keys: &[&str]| {
            let value = |line: &str| {
                Some(keys.iter().find_map(|key| line.strip_prefix(key))?.trim().to_owned())
            };
            let values: Vec<String> = paragraph.lines().filter_map(value).collect();
            (!values.is_empty()).then(|| values.join(", "))
        };
        let credit = (fields(&["License:"]), fields(&["Copyright:", "Source:"]));
        let files = paragraph.lines().skip_while(|line| line.trim() != "Files:").skip(1);
        credits.extend(files.map(|file| (format!("{folder}{}", file.trim()), credit.clone())));
    }
    credits
}
