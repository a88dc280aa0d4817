//! Adds the helpful option to errors of the libraries, which do not know the command's options.

use std::error::Error;

use engram_infer::InferError;
use engram_memory::MemoryError;
use engram_train::TrainError;

use super::output;

/// The error and its causes on one line, and the option that helps, if there is one.
pub fn with_remedy(error: &anyhow::Error) -> String {
    let text = output::with_causes(error);
    let trains = error.chain().any(|error| error.is::<TrainError>());
    let remedy = |error: &(dyn Error + 'static)| match error.downcast_ref() {
        // A run moves the values of its own memory only.
        Some(MemoryError::ForeignValues { .. }) if trains => {
            Some("`--set memory.values=ADDRESS` gives another one")
        }
        _ => remedy(error),
    };
    match error.chain().find_map(remedy) {
        Some(remedy) => format!("{text}; {remedy}"),
        None => text,
    }
}

fn remedy(error: &(dyn Error + 'static)) -> Option<&'static str> {
    if let Some(TrainError::Infer(error)) = error.downcast_ref() {
        return remedy(error.as_ref());
    }
    match error.downcast_ref() {
        Some(InferError::Memory(error)) => return remedy(error.as_ref()),
        Some(InferError::NoMemory) => return Some("omit -k and --memory"),
        _ => {}
    }
    match error.downcast_ref()? {
        MemoryError::Rows(error) => remedy(error.as_ref()),
        MemoryError::RemoteExists { .. } => Some("--replace replaces it"),
        MemoryError::ForeignValues { .. } => Some("`engram memory push --replace` does that"),
        MemoryError::DamagedObject { .. } => Some("`engram memory push --recheck` does that"),
        MemoryError::MissingGeneration { .. } => Some("`engram train` resumes with --resume"),
        MemoryError::Columns(_) => Some("--columns names the columns"),
        MemoryError::UnreadableValues { .. } => {
            Some("`cargo install --path . --features objects` builds one")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_option_follows_the_error_of_the_library() {
        let exists = || MemoryError::RemoteExists { location: "postgres://a".to_owned() };
        let in_rows = MemoryError::Rows(Box::new(InferError::from(exists())));
        for error in [
            anyhow::Error::from(exists()).context("could not be pushed"),
            InferError::from(exists()).into(),
            TrainError::from(InferError::from(exists())).into(),
            in_rows.into(),
        ] {
            let text = with_remedy(&error);
            assert!(text.ends_with("with memory=NAME; --replace replaces it"), "{text}");
        }
        let foreign = || MemoryError::ForeignValues { location: "s3://b".to_owned() };
        let in_training = TrainError::Study {
            study: "reveal".to_owned(),
            part: "training",
            source: Box::new(foreign()),
        };
        for (error, end) in [
            (anyhow::Error::from(foreign()), "; `engram memory push --replace` does that"),
            (in_training.into(), "; `--set memory.values=ADDRESS` gives another one"),
        ] {
            assert!(with_remedy(&error).ends_with(end), "{error:#}");
        }
        let text = with_remedy(&InferError::NoMemory.into());
        assert!(text.ends_with("it cannot use one; omit -k and --memory"), "{text}");
        assert_eq!(with_remedy(&MemoryError::RefreshCancelled.into()).matches("--").count(), 0);
    }
}
