//! The policy of merging segments. It keeps segments few after any history of changes.
//!
//! A segment belongs to a tier by its rows: tier 0 has 1 to 3 rows, tier 1 has 4 to 15, and so on
//! by factors of 4. A change merges its new rows with the small segments (below 65,536 rows) of
//! lower tiers. It also merges four small segments of a tier into one. So a row moves to a higher
//! tier whenever it is rewritten: `n` single additions rewrite each row at most `log4 n` times. A
//! merge drops deleted rows. A segment with more than a quarter of deleted rows is also rewritten,
//! because exact search reads them, too; but not a large segment with a graph.
//!
//! Other large segments stay, unless the memory would have more than [`MAX_SEGMENTS`] segments.
//! Then the lowest tier with four segments is merged.

/// The maximum number of segments after a change.
pub(crate) const MAX_SEGMENTS: usize = 64;
/// The number of segments of a tier that are merged.
const TIER_SEGMENTS: usize = 4;
/// The number of tiers: there are fewer than 2^32 = 4^16 rows. So among 64 segments, there are
/// always `TIER_SEGMENTS` of the same tier.
const TIERS: u32 = 16;
/// The tier from which segments are large: 65,536 rows.
const LARGE_TIER: u32 = 8;

/// A segment as the policy sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentSize {
    /// The number of rows, including deleted rows.
    pub(crate) rows: usize,
    /// The number of rows that are not deleted, at least 1.
    pub(crate) live_rows: usize,
    pub(crate) has_graph: bool,
}

impl SegmentSize {
    fn tier(&self) -> u32 {
        tier(self.live_rows)
    }
}

/// Returns the tier of a segment with this many rows.
fn tier(rows: usize) -> u32 {
    rows.max(1).ilog2() / 2
}

/// Returns for each segment whether it is merged into the segment of the `new_rows` new rows. At
/// most `max_segments` segments remain, including this segment.
pub(crate) fn choose(segments: &[SegmentSize], new_rows: usize, max_segments: usize) -> Vec<bool> {
    let is_small = |segment: &SegmentSize| segment.tier() < LARGE_TIER;
    let is_sparse = |segment: &SegmentSize| {
        4 * segment.live_rows < 3 * segment.rows && (is_small(segment) || !segment.has_graph)
    };
    let mut choice = Choice { segments, chosen: vec![false; segments.len()], rows: new_rows };
    let sparse = choice.others(is_sparse);
    choice.add(&sparse);
    for level in 0..LARGE_TIER {
        let group = choice.others(|segment| is_small(segment) && segment.tier() == level);
        let is_below = choice.rows > 0 && tier(choice.rows) > level;
        let is_in_tier = choice.rows > 0 && tier(choice.rows) == level;
        if is_below || group.len() + usize::from(is_in_tier) >= TIER_SEGMENTS {
            choice.add(&group);
        }
    }
    while choice.remaining() > max_segments {
        let mut groups = (0..TIERS).map(|level| choice.others(|segment| segment.tier() == level));
        match groups.find(|group| group.len() >= TIER_SEGMENTS) {
            Some(group) => choice.add(&group),
            None => break,
        }
    }
    choice.chosen
}

/// The segments that are merged.
struct Choice<'a> {
    segments: &'a [SegmentSize],
    chosen: Vec<bool>,
    /// The number of rows of the merged segment.
    rows: usize,
}

impl Choice<'_> {
    /// Returns the indices of other segments.
    fn others(&self, is_member: impl Fn(&SegmentSize) -> bool) -> Vec<usize> {
        let indices = 0..self.segments.len();
        indices.filter(|index| !self.chosen[*index] && is_member(&self.segments[*index])).collect()
    }

    fn add(&mut self, group: &[usize]) {
        for index in group {
            self.chosen[*index] = true;
            self.rows += self.segments[*index].live_rows;
        }
    }

    /// The number of segments after the merge.
    fn remaining(&self) -> usize {
        let others = self.chosen.iter().filter(|is_chosen| !**is_chosen).count();
        others + usize::from(self.rows > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(rows: usize) -> SegmentSize {
        SegmentSize { rows, live_rows: rows, has_graph: false }
    }

    /// Adds a segment of new rows to a history, and returns the number of rows that are written.
    fn add(segments: &mut Vec<SegmentSize>, rows: usize) -> usize {
        let chosen = choose(segments, rows, MAX_SEGMENTS);
        let mut written = rows;
        let mut next = chosen.iter();
        segments.retain(|segment| {
            let is_chosen = *next.next().unwrap();
            written += if is_chosen { segment.live_rows } else { 0 };
            !is_chosen
        });
        segments.push(segment(written));
        written
    }

    #[test]
    fn single_additions_rewrite_each_row_a_logarithmic_number_of_times() {
        let (mut segments, mut written, total) = (Vec::new(), 0, 300_000usize);
        for _ in 0..total {
            written += add(&mut segments, 1);
            assert!(segments.len() <= 24 + 4, "{segments:?}");
        }
        assert!(written <= total * 10, "{written} rows were written");
        assert_eq!(segments.iter().map(|segment| segment.rows).sum::<usize>(), total);
    }

    #[test]
    fn few_segments_remain_whatever_their_sizes() {
        let mut state = 1u64;
        let mut random = |bound: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040);
            (state >> 33) % bound
        };
        let mut segments: Vec<SegmentSize> = Vec::new();
        let (mut written, mut total) = (0, 0);
        for _ in 0..5000 {
            // The user builds graphs over some segments, and deletes rows.
            for segment in &mut segments {
                segment.has_graph |= random(8) == 0;
                segment.live_rows -= (random(3) as usize).min(segment.live_rows - 1);
            }
            let rows = 1 << random(20);
            total += rows;
            written += add(&mut segments, rows);
            assert!(segments.len() <= MAX_SEGMENTS);
        }
        assert!(written <= 20 * total, "{written} rows were written for {total}");
    }

    #[test]
    fn large_segments_stay_until_there_are_too_many() {
        let graph = SegmentSize { has_graph: true, ..segment(1 << 18) };
        let mut segments = vec![segment(1 << 16); 30];
        segments.extend([graph; 30]);
        assert!(!choose(&segments, 1, MAX_SEGMENTS).contains(&true));
        segments.extend([graph; 10]);
        let chosen = choose(&segments, 1, MAX_SEGMENTS);
        assert!(chosen[..30].iter().all(|is_chosen| *is_chosen));
        assert!(!chosen[30..].contains(&true));
        let only_graphs = [graph; 64];
        assert_eq!(choose(&only_graphs, 1, MAX_SEGMENTS), [true; 64]);
    }

    #[test]
    fn small_segments_with_graphs_are_merged() {
        let graph = SegmentSize { has_graph: true, ..segment(100) };
        assert_eq!(choose(&[graph; 3], 70, MAX_SEGMENTS), [true; 3]);
    }

    #[test]
    fn a_segment_with_many_deleted_rows_is_rewritten() {
        let sparse = SegmentSize { rows: 1 << 20, live_rows: 3 << 18, has_graph: false };
        assert_eq!(choose(&[segment(9000), sparse], 0, MAX_SEGMENTS), [false, false]);
        let sparse = SegmentSize { live_rows: sparse.live_rows - 1, ..sparse };
        // Smaller segments are merged with it.
        assert_eq!(choose(&[segment(9000), sparse], 0, MAX_SEGMENTS), [true, true]);
        let with_graph = SegmentSize { has_graph: true, ..sparse };
        assert_eq!(choose(&[segment(9000), with_graph], 0, MAX_SEGMENTS), [false, false]);
        let small = SegmentSize { rows: 1000, live_rows: 700, has_graph: true };
        assert_eq!(choose(&[small], 0, MAX_SEGMENTS), [true]);
    }
}
