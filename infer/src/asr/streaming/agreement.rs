//! Counts the words of a hypothesis that are already final, and the first words on which two
//! hypotheses agree.
//!
//! The paper's implementation (ufal/whisper_streaming) drops words by time, then up to five words
//! at the seam that equal the last final words. A word that the next pass spells or divides
//! differently (`some one`, `someone`) then appears twice. Here, the final words are aligned with
//! the hypothesis.

use super::super::transcript::Word;

/// The cost of replacing a word that starts in the seam. The cost of replacing other words is 1.
const SEAM_REPLACEMENT_COST: f64 = 0.1;

/// Returns a word in lower case without punctuation. A word of punctuation only is unchanged.
fn normalised(word: &Word) -> String {
    let letters = word.text.chars().filter(|c| c.is_alphanumeric());
    let letters: String = letters.flat_map(char::to_lowercase).collect();
    if letters.is_empty() { word.text.clone() } else { letters }
}

/// The number of equal words at the start of two hypotheses, ignoring case and punctuation.
pub(super) fn count_agreed(previous: &[Word], current: &[Word]) -> usize {
    let is_same = |(a, b): &(&Word, &Word)| normalised(a) == normalised(b);
    previous.iter().zip(current).take_while(is_same).count()
}

/// Returns how many words at the start of a hypothesis correspond to the `known` words. The count
/// minimises the edit distance between the known words and these words, plus a time difference: the
/// seconds from the end of the last known word to the gap after these words. Known words that start
/// before `seam` (in seconds) may be missing at no cost.
pub(super) fn count_known(known: &[&Word], hypothesis: &[Word], seam: f64) -> usize {
    let Some(end) = known.last().map(|word| word.end) else { return 0 };
    let words: Vec<String> = hypothesis.iter().map(normalised).collect();
    // The edit distance between the known words so far and each prefix of the hypothesis.
    let mut distances: Vec<f64> = (0..=words.len()).map(|count| count as f64).collect();
    for known in known {
        let known_word = normalised(known);
        let (deletion_cost, replacement_cost) =
            if known.start < seam { (0.0, SEAM_REPLACEMENT_COST) } else { (1.0, 1.0) };
        let mut diagonal = distances[0];
        distances[0] += deletion_cost;
        for (j, word) in words.iter().enumerate() {
            let matched = diagonal + if *word == known_word { 0.0 } else { replacement_cost };
            diagonal = distances[j + 1];
            distances[j + 1] = matched.min(distances[j] + 1.0).min(diagonal + deletion_cost);
        }
    }
    // The time difference between `end` and the gap before word `count`.
    let time_difference = |count: usize| -> f64 {
        let before = count.checked_sub(1).map_or(0.0, |last| hypothesis[last].end - end);
        let after = hypothesis.get(count).map_or(0.0, |next| end - next.start);
        before.max(after).max(0.0)
    };
    let cost = |count: &usize| distances[*count] + time_difference(*count);
    (0..=words.len()).min_by(|a, b| cost(a).total_cmp(&cost(b))).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words of half a second each, starting at `start`.
    fn words(start: f64, text: &str) -> Vec<Word> {
        let word = |(i, text): (usize, &str)| {
            let start = start + i as f64 / 2.0;
            Word { start, end: start + 0.5, text: text.to_string(), probability: 1.0 }
        };
        text.split_whitespace().enumerate().map(word).collect()
    }

    #[test]
    fn hypotheses_agree_regardless_of_case_and_punctuation() {
        let current = words(0.0, "Well, he said no");
        assert_eq!(count_agreed(&words(0.0, "well he said"), &current), 3);
        assert_eq!(count_agreed(&words(0.0, "well she said"), &current), 1);
        assert_eq!(count_agreed(&[], &current), 0);
        // Words of punctuation only are compared too.
        assert_eq!(count_agreed(&words(0.0, "- a"), &words(0.0, "... a")), 0);
    }

    #[test]
    fn known_words_are_found_despite_changes_in_the_next_hypothesis() {
        for (known, hypothesis, expected) in [
            (words(0.0, "the cat"), words(0.0, "the cat sat"), 2),
            (words(0.0, "the cat"), words(0.0, "The cad, sat"), 2),
            // Another word division, and one more word.
            (words(0.0, "some one is here"), words(0.0, "someone is here now"), 3),
            ([words(1.0, "is"), words(2.0, "here")].concat(), words(1.0, "is not here now"), 3),
            // A part of a truncated word.
            (words(1.0, "station is good"), words(1.0, "shun is good they say"), 3),
            // Words that are missing in the hypothesis.
            (words(0.0, "the cat sat"), words(1.0, "sat on"), 1),
            (words(0.0, "the cat"), words(1.0, "sat on"), 0),
            (words(0.0, "the cat"), vec![], 0),
            (vec![], words(0.0, "the cat"), 0),
            // Repeated words: the times decide.
            (words(0.0, "no"), words(0.0, "no no no"), 1),
            (words(0.0, "no no"), words(0.0, "no no no"), 2),
            (words(0.0, "the cat"), words(1.0, "the cat"), 0),
        ] {
            let words: Vec<&Word> = known.iter().collect();
            let count = count_known(&words, &hypothesis, 0.6);
            assert_eq!(count, expected, "{known:?} {hypothesis:?}");
        }
    }
}
