//! Transactions of a memory in a local folder.

use std::sync::Arc;

use crate::change::Change;
use crate::error::MemoryError;
use crate::format::manifest::EncoderRecord;
use crate::segment::Batch;
use crate::store::{Batches, Snapshot, Transaction};
use crate::writer::Writer;

/// A change of a local memory, with the lock of its writer. At most 65,536 new entries are kept in
/// main memory, with at most 32 MiB of keys and values, and 32 MiB of texts. More entries are
/// written to disk at once, and must be the only new entries of their transaction.
#[derive(Debug)]
pub(crate) struct LocalTransaction {
    // Dropped first: the files of an unfinished change are removed before the lock ends.
    change: Change,
    writer: Writer,
}

impl LocalTransaction {
    pub(crate) fn begin(mut writer: Writer) -> Result<Self, MemoryError> {
        let change = writer.begin()?;
        Ok(Self { change, writer })
    }
}

impl Transaction for LocalTransaction {
    fn base(&self) -> Arc<dyn Snapshot> {
        Arc::clone(self.writer.generation()) as Arc<dyn Snapshot>
    }

    fn add(&mut self, rows: usize, batches: &mut Batches<'_>) -> Result<(), MemoryError> {
        self.change.add(rows, batches)
    }

    fn update(&mut self, rows: usize, batches: &mut Batches<'_>) -> Result<(), MemoryError> {
        self.change.update(rows, batches)
    }

    fn delete(&mut self, ids: &[i64]) -> Result<(), MemoryError> {
        self.change.delete(ids)
    }

    fn re_encode(
        &mut self,
        encoders: Vec<EncoderRecord>,
        width: usize,
        encode: &mut dyn FnMut(Batch) -> Result<Batch, MemoryError>,
    ) -> Result<(), MemoryError> {
        self.change.rewrite(encoders, width, encode)
    }

    fn prepare(&mut self) -> Result<(), MemoryError> {
        let Some(storage) = self.writer.generation().external().storage.clone() else {
            return Ok(());
        };
        match storage.target() {
            Some(target) => self.change.move_values(storage.as_ref(), target),
            None => Ok(()),
        }
    }

    fn commit_and_begin(self: Box<Self>) -> Result<Box<dyn Transaction>, MemoryError> {
        let Self { change, mut writer } = *self;
        writer.commit_change(change)?;
        writer.move_to_target()?;
        Ok(Box::new(Self::begin(writer)?))
    }
}
