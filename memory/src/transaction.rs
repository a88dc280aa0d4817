//! Transactions of a memory in a local folder.

use std::sync::Arc;

use crate::change::Change;
use crate::error::MemoryError;
use crate::format::manifest::EncoderRecord;
use crate::segment::Batch;
use crate::store::{Batches, Snapshot, Transaction};
use crate::writer::{Writer, check_widths};

/// A change of a local memory, with the lock of its writer. Up to 65,536 new entries, or 32 MiB, are
/// kept in main memory. More entries are written to disk at once, and must be the only new entries
/// of their transaction.
#[derive(Debug)]
pub(crate) struct LocalTransaction {
    writer: Writer,
    change: Change,
}

impl LocalTransaction {
    pub(crate) fn begin(mut writer: Writer) -> Result<Self, MemoryError> {
        let change = writer.begin()?;
        Ok(Self { writer, change })
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
        check_widths([width])?;
        self.change.rewrite(encoders, width, encode)
    }

    fn commit(self: Box<Self>) -> Result<Arc<dyn Snapshot>, MemoryError> {
        let Self { mut writer, change } = *self;
        writer.commit_change(change)?;
        Ok(Arc::clone(writer.generation()) as Arc<dyn Snapshot>)
    }
}
