//! Tests of the readers of pictures with names, on small packages that the tests write.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use engram_data::image::DecodedImage;
use engram_data::pictures::{Picture, Pictures, gcompris, stamps, thing};
use engram_data::world::questions::Split;
use tempfile::TempDir;

use crate::{assert_has, for_each_damage, gzip};

const STAMPS: &str = "usr/share/tuxpaint/stamps/";

fn fixture(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)).unwrap()
}

/// Writes files to a folder in a new folder.
fn folder(inner: &str, files: &[(&str, &[u8])]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join(inner)).unwrap();
    for (name, bytes) in files {
        let path = folder.path().join(inner).join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    folder
}

/// A GIF of two pixels, whose palette has black and a grey level.
fn image(grey: u8) -> Vec<u8> {
    let head = b"GIF89a\x02\0\x01\0\x80\0\0\0\0\0";
    let data = b"\x2c\0\0\0\0\x02\0\x01\0\0\x02\x02\x44\x0a\0\x3b";
    [&head[..], &[grey; 3], data].concat()
}

fn package() -> TempDir {
    let (png, ogg) = (image(200), fixture("audio/speech.ogg"));
    let crow = b"A crow.\n\nde.utf8=Eine Kr\xc3\xa4he.\nfr.utf8=Un corbeau.\nhu.utf8=\n";
    let (changes, ghost) = (gzip("tuxpaint-stamps (2022.06.04-1) unstable"), image(0));
    let stamps: &[(&str, &[u8])] = &[
        ("animals/crow.png", &png),
        ("animals/crow.txt", crow),
        ("animals/crow.ogg", &ogg),
        ("animals/crow_desc.ogg", &ogg),
        ("animals/crow_desc_fr.ogg.ogg", &ogg),
        ("animals/crow_desc_de.ogg", b"OggS"),
        ("animals/crow_desc_hu.ogg", &ogg),
        ("animals/crow_mirror.png", &png),
        ("animals/crow_description.ogg", &ogg),
        ("animals/crow2.png", &png),
        ("animals/crow2.txt", b"The crow, a bird"),
        ("animals/cartoon/dog.png", &png),
        ("animals/ghost.png", &ghost),
        ("animals/ghost.txt", b"A ghost."),
        ("animals/cat.png", b"\x89PNG"),
        ("animals/cat.txt", b"A cat."),
        ("animals/cow.png", &png),
        ("animals/pig.png", &png),
        ("animals/pig.txt", b"A pig.\nEin Schwein\n"),
        ("animals/owl.txt", b"An owl."),
        ("hats/hat.png", &png),
        ("hats/hat.svg", b""),
        ("symbols/a.png", &png),
        ("../../doc/tuxpaint-stamps-default/changelog.Debian.gz", &changes),
        ("../../doc/tuxpaint-stamps-default/copyright", b"Files: *\nLicense: GPL-2\n"),
    ];
    folder(STAMPS, stamps)
}

fn names_of(pictures: &Pictures) -> Vec<&str> {
    pictures.pictures.iter().map(|picture| &*picture.picture).collect()
}

#[test]
fn stamps_have_names_voices_and_sounds() {
    let package = package();
    for folder in [package.path().to_owned(), package.path().join(STAMPS)] {
        let mut stamps = stamps::read(&folder).unwrap();
        stamps.check();
        assert_eq!(names_of(&stamps), ["animals/crow", "animals/crow2"]);
        let crow = &stamps.pictures[0];
        assert_eq!((&*crow.thing, &*stamps.pictures[1].thing), ("crow", "crow"));
        assert_eq!((&*crow.text, &*crow.category), ("A crow.", "animals"));
        assert_eq!(crow.names.keys().collect::<Vec<_>>(), ["de", "en", "fr"]);
        let languages = crow.sounds.iter().map(|sound| sound.language.as_deref());
        assert_eq!(languages.collect::<Vec<_>>(), [None, Some("en"), Some("fr")]);
        assert!(crow.image.is_absolute() && crow.sounds[0].seconds > 0.1, "{crow:?}");
        assert_eq!(crow.licence.as_deref(), Some("GPL-2"));
        assert_eq!(stamps.version.as_deref(), Some("2022.06.04-1"));
        let left_out =
            [("drawing", 3), ("list of names without a picture", 1), ("mirrored picture", 1)];
        assert_eq!(stamps.left_out, left_out.into());
        let faults = stamps.faults.join("\n");
        assert_eq!(stamps.faults.len(), 6, "{faults}");
        let reasons =
            ["crow_desc_de.ogg: ", "no name in the language `hu`", "ghost.png: has one colour"];
        assert_has(&faults, &reasons);
        assert_has(&faults, &["cat.png: ", "cow.txt: ", "pig.txt:2: is not a name"]);
    }
    let empty = tempfile::tempdir().unwrap();
    let error = stamps::read(empty.path()).unwrap_err().to_string();
    assert_has(&error, &["has no stamps with names; unpack the package tuxpaint-stamps-default"]);
}

#[test]
fn own_pictures_have_a_table_of_names() {
    let (png, ogg) = (image(99), fixture("audio/speech.ogg"));
    let read = |table: &str| {
        let folder = folder(
            "",
            &[("names.csv", table.as_bytes()), ("a.png", &png), ("b/c.png", &png), ("v.ogg", &ogg)],
        );
        let mut pictures = stamps::read(folder.path())?;
        pictures.check();
        Ok::<_, engram_data::DataError>(pictures)
    };
    let table = "file,name,fr,voice_fr,sound,licence\na.png,My cup,Ma tasse,v.ogg,v.ogg,CC0\nb/c.png,my cup,,,,\n";
    let own = read(table).unwrap();
    assert_eq!(names_of(&own), ["a.png", "b/c.png"]);
    let cup = &own.pictures[0];
    assert_eq!((&*cup.thing, &*cup.text, &*cup.names["fr"]), ("my cup", "My cup", "Ma tasse"));
    assert_eq!((cup.sounds.len(), cup.licence.as_deref()), (2, Some("CC0")));
    for (table, fault) in [
        ("file,name\na.png,\n", "names.csv:2: has no name"),
        (
            "file,de,voice_fr\na.png,Tasse,v.ogg\n",
            "names.csv:2: has no text for its recording voice_fr",
        ),
        ("file,de\nno.png,Tasse\n", "no.png: "),
        ("file,de,sound\na.png,Tasse,a.png\n", "a.png: "),
    ] {
        assert_has(&read(table).unwrap().faults.join("\n"), &[fault]);
    }
    for (table, reason) in [
        ("name\na\n", "names.csv:1: column `file` is missing"),
        ("file,voice_../x\na.png,v.ogg\n", "names.csv:1: the column \"voice_../x\" is no language"),
        ("file,pt_BR,notes\na.png,a,b\n", "names.csv:1: the column \"notes\" is no language"),
        ("file,name\na.png,a\na.png,b\n", "names.csv:3: id `a.png` was already given"),
    ] {
        assert_has(&read(table).unwrap_err().to_string(), &[reason]);
    }
}

#[test]
fn a_thing_is_in_one_split_and_may_be_excluded() {
    let picture = |number: usize| {
        let name = format!("animals/{number}");
        Picture {
            thing: thing(&format!("A thing {}.", number / 2)),
            picture: name,
            ..Picture::default()
        }
    };
    let mut all = Pictures { pictures: (0..100).map(picture).collect(), ..Pictures::default() };
    let mut splits = BTreeSet::new();
    for seed in [1, 2, 1] {
        all.draw_splits(seed, [0.1, 0.2]);
        let mut split_of: BTreeMap<&str, Split> = BTreeMap::new();
        for picture in &all.pictures {
            let split = picture.split.unwrap();
            assert_eq!(*split_of.entry(&picture.thing).or_insert(split), split);
        }
        let count = |split| split_of.values().filter(|other| **other == split).count();
        assert_eq!([Split::Train, Split::Validation, Split::Test].map(count), [35, 5, 10]);
        splits.insert(split_of.into_values().collect::<Vec<_>>());
    }
    assert_eq!(splits.len(), 2, "the seed determines the splits");
    let lists = folder(
        "",
        &[("a", b"animals/0\n\nthing 7\n"), ("b", b"animals/\n"), ("c", b"thing 9\nthong\n")],
    );
    assert_eq!(all.exclude(&lists.path().join("a")).unwrap(), 3);
    assert_eq!((all.pictures.len(), &*all.pictures[0].picture), (97, "animals/1"));
    let error = all.exclude(&lists.path().join("c")).unwrap_err().to_string();
    assert_has(&error, &["c:2: no picture is \"thong\"; write a `picture`"]);
    assert_eq!(all.exclude(&lists.path().join("b")).unwrap(), 97);
}

/// Reads a container.
fn read_container(bytes: &[u8]) -> Result<Pictures, String> {
    let folder = folder("", &[("explore_test.rcc", bytes)]);
    gcompris::read(folder.path()).map_err(|error| error.to_string())
}

#[test]
fn containers_have_titles_paragraphs_and_kinds() {
    let pictures = read_container(&fixture("pictures/explore_test.rcc")).unwrap();
    let found = pictures.pictures.iter().map(|picture| (&*picture.thing, &*picture.text));
    let kind = ("measuring tape", "measuring tape");
    assert_eq!(found.collect::<Vec<_>>(), [kind, kind, ("petra", "A city in the \"rock\".")]);
    let petra = &pictures.pictures[2];
    assert_eq!((&*petra.names["en"], &*petra.category), ("Petra, Jordan", "explore_test"));
    assert_eq!(petra.licence.as_deref(), Some("CC0-1.0"));
    assert_eq!(petra.origin.as_deref(), Some("Ann, https://example.org/petra.jpg"));
    assert_eq!(pictures.files.len(), 3);
    for (path, bytes) in &pictures.files {
        DecodedImage::from_bytes(path, bytes).unwrap();
    }
}

#[test]
fn hostile_containers_are_refused() {
    let whole = fixture("pictures/explore_test.rcc");
    for_each_damage(&whole, |damaged| drop(read_container(damaged)));
    let units: Vec<u8> = "petra.webp".encode_utf16().flat_map(u16::to_be_bytes).collect();
    let name = whole.windows(units.len()).position(|window| window == units).unwrap();
    let board = (0..30).map(|node| 24 + 22 * node).find(|node| whole[node + 5] == 1).unwrap();
    let data = u32::from_be_bytes(*whole[12..].first_chunk().unwrap());
    let bomb = [vec![0; 4], zlib(&vec![0; (1 << 28) + 1])].concat();
    let mut with_bomb = [&whole[..], &(bomb.len() as u32).to_be_bytes(), &bomb].concat();
    let offset = whole.len() as u32 - data;
    with_bomb[board + 10..board + 14].copy_from_slice(&offset.to_be_bytes());
    let changes: &[(usize, &[u8], &str)] = &[
        (0, b"zres", "is not a Qt container"),
        (7, &[9], "is not a Qt container of the versions 1 to 3 (version 9)"),
        (34, &[0, 0, 0, 0], "node 0 is in two folders"),
        (34, &[255; 4], "is damaged"),
        (30, &[255; 4], "more than 100000 files"),
        (name - 6, &[0, 2, 0, 0, 0, 0, 0, b'.', 0, b'.'], "a file with the name \"..\""),
        (name, &[0, b'/'], "a file with the name \"/etra.webp\""),
        (name, &[0xd8, 0], "is damaged"),
        (board + 5, &[4], "is compressed by zstd"),
        (board + 10, &[255; 4], "is damaged"),
    ];
    for &(position, bytes, reason) in changes {
        let mut changed = whole.clone();
        changed[position..position + bytes.len()].copy_from_slice(bytes);
        assert_has(&read_container(&changed).unwrap_err(), &["explore_test.rcc: ", reason]);
    }
    let mut renamed = whole.clone();
    renamed[name + 1] = b'q';
    let faults = read_container(&renamed).unwrap().faults;
    assert_eq!(faults, ["explore_test/resource/petra.webp: no container has this file"]);
    assert_has(&read_container(&with_bomb).unwrap_err(), &["has files of more than 256 MiB"]);
    assert_has(&read_container(b"").unwrap_err(), &["is damaged: 4 bytes at 0 + 4 are missing"]);
    let nothing = gcompris::read(folder("", &[]).path()).unwrap_err().to_string();
    assert_has(&nothing, &["has no pictures in containers; unpack the package gcompris-qt-data"]);
}

fn zlib(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
#[ignore = "needs ENGRAM_STAMPS: the unpacked packages"]
fn the_real_packages_are_read() {
    let folder = std::env::var_os("ENGRAM_STAMPS").expect("ENGRAM_STAMPS is a folder");
    let mut stamps = stamps::read(Path::new(&folder)).unwrap();
    let left_out = stamps.left_out.values().copied();
    assert_eq!(left_out.collect::<Vec<_>>(), [529, 2, 11], "{:?}", stamps.left_out);
    stamps.check();
    assert_eq!((stamps.pictures.len(), stamps.faults.len()), (420, 12), "{:?}", stamps.faults);
    let mut voices: BTreeMap<&str, usize> = BTreeMap::new();
    for sound in stamps.pictures.iter().flat_map(|picture| &picture.sounds) {
        *voices.entry(sound.language.as_deref().unwrap_or("")).or_default() += 1;
    }
    assert_eq!((voices[""], voices["fr"], voices["es"], voices.len()), (100, 414, 407, 14));
    let gcompris = gcompris::read(Path::new(&folder)).unwrap();
    let explored = gcompris.pictures.iter().filter(|picture| picture.text.len() > 40);
    assert_eq!((explored.count(), gcompris.pictures.len(), gcompris.files.len()), (82, 222, 240));
    assert_eq!(gcompris.faults, [""; 0]);
}
