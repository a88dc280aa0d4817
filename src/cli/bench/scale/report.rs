//! The report as text.

use std::fmt::Write as _;

use engram_data::messages::counted;

use super::{Assumptions, Reduction, ScaleReport};

impl ScaleReport {
    /// The report as text with Markdown tables.
    pub(super) fn to_text(&self) -> String {
        let mut text = format!(
            "{}; {}; keys of {} numbers; k {}; {} candidates of the graph\n\n\
             | memory | keys | build | bytes per key | query, median | p95 | recall |\n\
             |---|---|---|---|---|---|---|\n",
            self.machine,
            counted(self.threads, "thread"),
            self.width,
            self.k,
            self.candidates
        );
        for series in &self.series {
            for point in &series.points {
                let _ = writeln!(
                    text,
                    "| {} | {} | {:.1} s | {:.0} | {:.2} ms | {:.2} ms | {:.4} |",
                    series.name,
                    point.keys,
                    point.build_seconds,
                    point.bytes as f64 / point.keys as f64,
                    point.query_ms,
                    point.query_p95_ms,
                    point.recall
                );
            }
        }
        text.push('\n');
        for series in &self.series {
            let _ = writeln!(
                text,
                "{}: build ~ keys^{:.2} (measured within {:.0} %), query ~ keys^{:.2} ({:.0} %)",
                series.name,
                series.build.exponent,
                100.0 * series.build.largest_deviation,
                series.query.exponent,
                100.0 * series.query.largest_deviation
            );
        }
        for query in &self.shards {
            let _ = writeln!(
                text,
                "{} of {} keys, simulated, exact: {:.2} ms, of which the merge {:.3} ms",
                counted(query.shards, "shard"),
                query.keys / query.shards,
                query.query_ms,
                query.merge_ms
            );
        }
        let _ = write!(
            text,
            "\nThe sum of the gradients of {} parameters, simulated from {:.2} billion measured additions \
             per second:\n\n| ranks | network | additions | together |\n|---|---|---|---|\n",
            self.reductions.first().map_or(0, |reduction| reduction.parameters),
            self.additions_per_second / 1e9
        );
        for Reduction { ranks, network_seconds, addition_seconds, .. } in &self.reductions {
            let together = network_seconds + addition_seconds;
            let [network, additions, together] =
                [*network_seconds, *addition_seconds, together].map(|seconds| 1000.0 * seconds);
            let _ = writeln!(
                text,
                "| {ranks} | {network:.1} ms | {additions:.1} ms | {together:.1} ms |"
            );
        }
        text.push_str(
            "\nExtrapolated:\n\n\
             | memory | entries | keys | values | machines | build | query | price per month |\n\
             |---|---|---|---|---|---|---|---|\n",
        );
        for cost in &self.extrapolations {
            let _ = writeln!(
                text,
                "| {} | {} | {:.0} GB | {:.1} TB | {} | {:.2} h | {:.0} ms | {:.0} |",
                cost.name,
                cost.entries,
                cost.key_bytes / 1e9,
                cost.value_bytes / 1e12,
                cost.machines,
                cost.build_hours,
                cost.query_ms,
                cost.price_per_month
            );
        }
        let Assumptions { value_bytes, machine_memory, machine_price, storage_price, .. } =
            &self.assumptions;
        let _ = write!(
            text,
            "\nAssumptions\n\
             - The power laws hold beyond the measured sizes.\n\
             - Every machine is as fast as this one, has {machine_memory} GB of memory for keys and \
             graphs, and costs {machine_price} per hour.\n\
             - Shards are built and searched at the same time, each in the median time. Their results \
             are merged in no time.\n\
             - Servers that share a machine here take the same time on separate machines.\n\
             - Each rank adds as fast as this machine, and does not compute while it sends. It sends \
             and receives {} GB per second.\n\
             - A request and its answer take {} ms on the network.\n\
             - A value has {value_bytes} bytes. A GB of values costs {storage_price} per month.\n",
            self.network.bandwidth / 1e9,
            self.network_ms
        );
        text
    }
}
