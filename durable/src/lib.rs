//! Durable writes: a file or a folder appears as a whole or not at all.
//!
//! A write goes to a temporary file or folder beside the target. This file or folder is synced and
//! renamed to the target, then the parent folder is synced. So after a killed process, the target
//! has its old or its new content, and a write that returned `Ok` survives a power cut. Only files
//! from [`create_new_file`], [`append_to`], [`open_lock`] and [`open_device`] are written in place.
//!
//! Files are read with [`open_file`] and [`read_file`], which refuse pipes and devices, or with
//! [`open_input`]. No other crate of the workspace opens files: `clippy.toml` disallows it.
//!
//! A temporary file or folder is named `.NAME.engram-XXXXXX`, so [`remove_leftovers`] can
//! distinguish it from the user's files.
//!
//! ```
//! # fn main() -> std::io::Result<()> {
//! # let parent = tempfile::tempdir()?;
//! # let folder = parent.path().join("set");
//! let set = engram_durable::FolderWriter::create(&folder)?;
//! engram_durable::write_file(&set.path().join("rows.jsonl"), b"{}\n")?;
//! set.commit()?;
//! assert!(folder.join("rows.jsonl").is_file());
//! # Ok(())
//! # }
//! ```

mod file;
mod folder;
mod leftover;
mod open;
mod platform;

pub use file::{
    FileWriter, append_to, copy_file, create_new_file, is_at, link_file, open_device, open_lock,
    write_file, write_link,
};
pub use folder::{
    FolderWriter, create_folder, create_folder_in, remove_file, remove_folder, rename,
};
pub use leftover::{is_leftover, remove_leftovers};
pub use open::{is_open_already, open_file, open_input, read_file, read_input_text, read_text};
pub use platform::{file_identity, has_other_names, sync_file, sync_folder};
