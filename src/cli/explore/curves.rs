//! Reads the metrics of a run by step from `metrics.jsonl`.

use std::path::Path;

use anyhow::Context;
use engram_train::METRICS;
use serde::Serialize;
use serde_json::{Map, Value};

/// Maximum number of points per curve; longer curves are subsampled evenly.
const MAX_POINTS: usize = 2000;
/// Fields that are not metrics.
const NOT_METRICS: [&str; 3] = ["step", "epoch", "examples"];

/// The curves of a run, and its phases in order, each with the first step that it logged.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(super) struct Curves {
    curves: Vec<Curve>,
    phases: Vec<(String, f64)>,
}

/// A metric by step.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Curve {
    /// The kind of log line and the metric, such as `train: loss` or `evaluation: pearson`.
    pub(super) name: String,
    /// Pairs of step and value.
    pub(super) points: Vec<[f64; 2]>,
}

/// Reads the curves of a run, in the order of their first points. For an unfinished run, the
/// curves so far.
pub(super) fn read(run: &Path) -> anyhow::Result<Curves> {
    let path = run.join(METRICS);
    let text = match engram_durable::read_text(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        read => read.with_context(|| format!("{}: could not be read", path.display()))?,
    };
    // The last line may be incomplete while the run is running.
    let complete = text.rfind('\n').map_or("", |end| &text[..end]);
    let Curves { mut curves, mut phases } = Curves::default();
    for (number, line) in (1..).zip(complete.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        let fields: Map<String, Value> = serde_json::from_str(line)
            .with_context(|| format!("{}:{number}: is not a line of metrics", path.display()))?;
        let field = |name: &str| fields.get(name);
        let (Some(kind), Some(step)) =
            (field("kind").and_then(Value::as_str), field("step").and_then(Value::as_f64))
        else {
            continue;
        };
        if let Some(phase) = field("phase").and_then(Value::as_str)
            && !phases.iter().any(|(name, _)| name == phase)
        {
            phases.push((phase.to_owned(), step));
        }
        for (name, value) in &fields {
            let Some(value) = value.as_f64().filter(|_| !NOT_METRICS.contains(&name.as_str()))
            else {
                continue;
            };
            let name = format!("{kind}: {name}");
            match curves.iter_mut().find(|curve| curve.name == name) {
                Some(curve) => curve.points.push([step, value]),
                None => curves.push(Curve { name, points: vec![[step, value]] }),
            }
        }
    }
    curves.iter_mut().for_each(|curve| curve.points = subsampled(&curve.points));
    Ok(Curves { curves, phases })
}

/// Subsamples the points evenly, and keeps the last one.
fn subsampled(points: &[[f64; 2]]) -> Vec<[f64; 2]> {
    let stride = points.len().div_ceil(MAX_POINTS).max(1);
    let last = points.len().saturating_sub(1);
    let selected = points.iter().enumerate().filter(|(i, _)| (last - i).is_multiple_of(stride));
    selected.map(|(_, point)| *point).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn an_unfinished_run_has_the_curves_of_its_complete_lines() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(read(folder.path()).expect("no curves"), Curves::default());
        let file = folder.path().join(METRICS);
        let lines = "{\"kind\":\"train\",\"step\":10,\"phase\":\"a\",\"epoch\":0,\"loss\":2.5}\n\
                     {\"kind\":\"evaluation\",\"step\":10,\"accuracy\":0.5,\"recall\":null}\n\n\
                     {\"kind\":\"train\",\"step\":20,\"phase\":\"b\",\"loss\":1.5}\n{\"kind\":\"train\",\"st";
        fs::write(&file, lines).expect("written");
        let curve =
            |name: &str, points: &[[f64; 2]]| Curve { name: name.into(), points: points.into() };
        let loss = curve("train: loss", &[[10.0, 2.5], [20.0, 1.5]]);
        let curves = vec![loss, curve("evaluation: accuracy", &[[10.0, 0.5]])];
        let phases = vec![("a".to_owned(), 10.0), ("b".to_owned(), 20.0)];
        let expected = Curves { curves, phases };
        assert_eq!(read(folder.path()).expect("curves"), expected);
        fs::write(&file, "{\"kind\":\"train\"}\nnonsense\n").expect("written");
        let error = format!("{:#}", read(folder.path()).expect_err("no JSON"));
        assert!(error.contains("metrics.jsonl:2: is not a line of metrics"), "{error}");
    }

    #[test]
    fn long_curves_are_subsampled_and_keep_their_last_point() {
        let points: Vec<[f64; 2]> = (0..5001).map(|step| [f64::from(step), 0.0]).collect();
        let selected = subsampled(&points);
        assert!(selected.len() <= MAX_POINTS, "{}", selected.len());
        assert_eq!(selected.last(), points.last());
        assert_eq!(subsampled(&points[..3]), points[..3]);
    }
}
