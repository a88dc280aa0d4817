//! The stamps of Tux Paint: the unpacked Debian package `tuxpaint-stamps-default`, the folder
//! `stamps` in it, or a folder of one's own with a file `names.csv`.
//!
//! A stamp `crow` has the files `crow.png`, `crow.txt` (its names), `crow.ogg` (its sound),
//! `crow_desc.ogg` and `crow_desc_fr.ogg` (people say its name in English and in French). Cartoons,
//! symbols, drawings (stamps that are also SVG files) and mirrored stamps are left out; most others
//! are photographs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use engram_textfile::{TextError, non_blank_lines, read_text};

use super::{Picture, Pictures, Sound, inside, names, thing, version};
use crate::{DataError, folder};

/// Reads the stamps of a folder. Images and sounds are located but not opened.
///
/// # Errors
/// `Io`; `Text` for a wrong `names.csv`; `Malformed` for a folder without stamps
pub fn read(folder: &Path) -> Result<Pictures, DataError> {
    let own = folder.join("names.csv");
    if own.is_file() {
        return names::read(&own);
    }
    let root = inside(folder, "usr/share/tuxpaint/stamps")?;
    let listing = folder::files(&root, &|_| true)?.files;
    let relative = |file: &PathBuf| Some(file.strip_prefix(&root).ok()?.to_str()?.to_owned());
    let files: BTreeSet<String> = listing.iter().filter_map(relative).collect();
    let doc = root.join("../../doc/tuxpaint-stamps-default");
    let licence = read_text(doc.join("copyright")).ok();
    let licence = licence.and_then(|text| {
        Some(text.lines().find_map(|line| line.strip_prefix("License:"))?.trim().to_owned())
    });
    let mut output = Pictures { version: version(&doc), ..Pictures::default() };
    for file in &files {
        let Some((stem, extension)) = file.rsplit_once('.') else { continue };
        let has = |extension: &str| files.contains(&format!("{stem}.{extension}"));
        let left_out = match extension {
            "txt" if !has("png") && !has("svg") => "list of names without a picture",
            "svg" if !has("png") => "drawing",
            "png" if stem.ends_with("_mirror") || stem.ends_with("_flip") => "mirrored picture",
            "png" if has("svg") || is_drawing(stem) => "drawing",
            "png" => {
                match names_of(&root.join(stem).with_extension("txt")) {
                    Ok(names) => output.pictures.push(Picture {
                        source: "stamps",
                        thing: thing(&names["en"]),
                        image: root.join(file),
                        text: names["en"].clone(),
                        picture: stem.to_owned(),
                        sounds: sounds(&root, &files, stem, &names, &mut output.faults),
                        names,
                        category: stem.rsplit_once('/').map_or("", |(folder, _)| folder).to_owned(),
                        licence: licence.clone(),
                        ..Picture::default()
                    }),
                    Err(error) => output.faults.push(error.to_string()),
                }
                continue;
            }
            _ => continue,
        };
        *output.left_out.entry(left_out).or_default() += 1;
    }
    if output.pictures.is_empty() {
        let remedy = "unpack the package tuxpaint-stamps-default, or write a file names.csv with \
                      the columns `file` and `name`";
        return Err(DataError::of_file(folder, "has no stamps with names", remedy));
    }
    Ok(output)
}

fn is_drawing(stem: &str) -> bool {
    stem.starts_with("symbols/") || stem.split('/').any(|folder| folder == "cartoon")
}

/// Reads the names of a stamp, by language. The first line is the English name.
fn names_of(path: &Path) -> Result<BTreeMap<String, String>, DataError> {
    let mut names = BTreeMap::new();
    for (line, text) in non_blank_lines(&read_text(path)?) {
        let (language, name) = match (text.split_once(".utf8="), names.is_empty()) {
            (Some(translation), false) => translation,
            (None, true) => ("en", text),
            _ => {
                let remedy = "the first line is the English name, the others are like `de.utf8=…`";
                return Err(TextError::malformed(path, line, "is not a name", remedy).into());
            }
        };
        if !name.trim().is_empty() {
            names.insert(language.to_owned(), name.trim().to_owned());
        }
    }
    match names.is_empty() {
        true => Err(TextError::Empty { file: path.display().to_string() }.into()),
        false => Ok(names),
    }
}

/// Returns the sounds of a stamp. A voice in a language without a name is a fault.
fn sounds(
    root: &Path,
    files: &BTreeSet<String>,
    stem: &str,
    names: &BTreeMap<String, String>,
    faults: &mut Vec<String>,
) -> Vec<Sound> {
    let effects = ["ogg", "wav"].map(|extension| format!("{stem}.{extension}"));
    let effects = effects.iter().filter(|effect| files.contains(*effect));
    let effect = |effect| Sound { file: root.join(effect), ..Sound::default() };
    let mut sounds: Vec<Sound> = effects.map(effect).collect();
    let start = format!("{stem}_desc");
    for file in files.range(start.clone()..).take_while(|file| file.starts_with(&start)) {
        // The package has one file `….ogg.ogg`.
        let language = match file[start.len()..].split_once('.') {
            Some(("", "ogg" | "wav")) => "en",
            Some((language, "ogg" | "wav" | "ogg.ogg")) if language.starts_with('_') => {
                &language[1..]
            }
            _ => continue,
        };
        let file = root.join(file);
        if names.contains_key(language) {
            sounds.push(Sound { file, language: Some(language.to_owned()), seconds: 0.0 });
        } else {
            let file = file.display();
            faults.push(format!("{file}: {stem}.txt has no name in the language `{language}`"));
        }
    }
    sounds
}
