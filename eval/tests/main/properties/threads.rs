//! Results are the same on one thread and on three.

use super::*;

/// Runs a function on a pool of one thread and on a pool of three, and compares the results.
fn check_on_both_pools<T: PartialEq + std::fmt::Debug + Send>(run: impl Fn() -> T + Sync) {
    let run_on = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
        pool.install(&run)
    };
    assert_eq!(run_on(1), run_on(3));
}

#[test]
fn no_score_depends_on_the_thread_count() {
    let pairs = vec((sentence(9), sentence(9)), 150..260);
    check_property(cases(4), pairs, |pairs| {
        let (references, hypotheses): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        check_on_both_pools(|| format!("{:?}", wer_report(&references, &hypotheses)));
        check_on_both_pools(|| Normaliser::WhisperEnglish.normalise_all(&references));
        check_on_both_pools(|| ptb::tokenize(&references));
        check_on_both_pools(|| format!("{:?}", caption_scores(&references, &hypotheses)));
        let queries = queries(&references, &hypotheses);
        check_on_both_pools(|| format!("{:?}", retrieval_report(&queries)));
    });
}

/// The text has enough lines for several parts, and tags that contain line ends.
#[test]
fn the_tokenizer_does_not_depend_on_the_thread_count() {
    let line = |number: usize| match number % 1999 {
        7 => "he said <a b=\"".to_owned(),
        11 => "c\"> K.".to_owned(),
        number => format!("The dog no. {number} of Mr. K."),
    };
    let lines: Vec<String> = (0..9000).map(line).collect();
    check_on_both_pools(|| ptb::tokenize(&lines));
}
