//! A folder of one's own pictures: `names.csv` has a row for each picture. Its column `file` names
//! the image, `name` and columns such as `de` the thing, `voice_name` and `voice_de` recordings of
//! these names, `sound` a sound of the thing; `category` and `licence` are optional, too.

use std::path::Path;

use engram_textfile::{Input, Table, TextError, UniqueIds, base_folder};

use super::{Picture, Pictures, Sound, thing};
use crate::DataError;

/// The columns that are no languages.
const COLUMNS: [&str; 6] = ["file", "name", "voice_name", "category", "licence", "sound"];

/// Whether a name is a code of 2 or 3 letters, perhaps with a region or variant: `pt_BR`.
fn is_language(name: &str) -> bool {
    let (code, rest) = name.split_at(name.find(['-', '_', '@']).unwrap_or(name.len()));
    let is_code = |c: char| c.is_ascii_alphanumeric() || "-_@".contains(c);
    matches!(code.len(), 2..=3)
        && code.chars().all(|c| c.is_ascii_alphabetic())
        && rest.chars().all(is_code)
}

/// Reads the file. Images and sounds are not opened.
pub(super) fn read(path: &Path) -> Result<Pictures, DataError> {
    let io = |source| DataError::Io { path: path.into(), source };
    let folder = std::path::absolute(base_folder(path)).map_err(io)?;
    let mut table = Table::csv(Input::open(path)?)?;
    let file = table.column("file")?;
    let header = table.header().to_vec();
    for name in &header {
        table.column(name)?;
        let language = name.strip_prefix("voice_").unwrap_or(name);
        if !COLUMNS.contains(&&**name) && !is_language(language) {
            let reason = format!("the column {name:?} is no language");
            let remedy = "remove it, or name it file, name, category, licence, sound, a language \
                          such as de or pt_BR, or voice_de";
            return Err(TextError::malformed(path, 1, reason, remedy).into());
        }
    }
    let (mut output, mut images) = (Pictures::default(), UniqueIds::with_capacity(0));
    while table.advance()? {
        let image = table.required_field(file)?.to_owned();
        images.add(image.clone(), table.location())?;
        let mut picture = Picture {
            source: "pictures",
            image: folder.join(&image),
            picture: image,
            ..Picture::default()
        };
        for (name, value) in header.iter().zip(table.fields()) {
            let value = value.trim();
            let sound = |language: Option<&str>| Sound {
                file: folder.join(value),
                language: language.map(str::to_owned),
                seconds: 0.0,
            };
            match (name.as_str(), name.strip_prefix("voice_")) {
                (name, _) if value.is_empty() || name == "file" => {}
                ("category", _) => picture.category = value.to_owned(),
                ("licence", _) => picture.licence = Some(value.to_owned()),
                ("sound", _) => picture.sounds.push(sound(None)),
                (_, Some(language)) => picture.sounds.push(sound(Some(language))),
                (language, None) => {
                    if picture.text.is_empty() || language == "name" {
                        (picture.text, picture.thing) = (value.to_owned(), thing(value));
                    }
                    picture.names.insert(language.to_owned(), value.to_owned());
                }
            }
        }
        let unnamed = |sound: &Sound| {
            sound.language.clone().filter(|language| !picture.names.contains_key(language))
        };
        if picture.text.is_empty() {
            let remedy = "fill in a column `name`, or the column of a language, such as `de`";
            output.faults.push(table.error("has no name", remedy).to_string());
        } else if let Some(language) = picture.sounds.iter().find_map(unnamed) {
            let reason = format!("has no text for its recording voice_{language}");
            let remedy = "write the words that are spoken into the column without `voice_`";
            output.faults.push(table.error(reason, remedy).to_string());
        } else {
            output.pictures.push(picture);
        }
    }
    Ok(output)
}
