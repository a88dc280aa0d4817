use super::*;

const TEXTS: [&str; 10] = [" new", " york", "er", " city", "-", "new", " kin", "d", "ness", " "];
const BONUS: Bonus = Bonus { begin: 1.0, next: 2.0 };

fn tree(words: &[&[u32]]) -> BoostTree {
    BoostTree::new(words, BONUS, Arc::new(WordBoundaries::from_tokens(TEXTS)))
}

/// Returns the bonus of each token of a text. Also checks that `bonuses` agrees with `advance`.
fn token_bonuses(tree: &BoostTree, tokens: &[u32], broken_match: BrokenMatch) -> Vec<f32> {
    let mut state = BoostState::default();
    let mut bonuses = vec![f32::NAN; TEXTS.len()];
    let bonus_of_token = |token: &u32| {
        tree.bonuses(state, broken_match, &mut bonuses);
        for (token, bonus) in (0..).zip(&bonuses) {
            assert_eq!(*bonus, tree.advance(state, token, broken_match).1, "{token} in {tokens:?}");
        }
        let (next, bonus) = tree.advance(state, *token, broken_match);
        state = next;
        bonus
    };
    tokens.iter().map(bonus_of_token).collect()
}

/// Returns the bonus of each token, with the bonus of broken matches returned.
fn with_returned_bonus(words: &[&[u32]], tokens: &[u32]) -> Vec<f32> {
    token_bonuses(&tree(words), tokens, BrokenMatch::ReturnBonus)
}

#[test]
fn a_complete_word_keeps_its_bonus() {
    let words: &[&[u32]] = &[&[0, 1]];
    assert_eq!(with_returned_bonus(words, &[3, 0, 1, 3, 3]), [0.0, 1.0, 2.0, 0.0, 0.0]);
    // The word occurs twice in a row.
    assert_eq!(with_returned_bonus(words, &[0, 1, 0, 1, 4]), [1.0, 2.0, 1.0, 2.0, 0.0]);
}

#[test]
fn a_broken_match_returns_its_bonus_unless_kept() {
    let words: &[&[u32]] = &[&[0, 1]];
    assert_eq!(with_returned_bonus(words, &[0, 3, 3]), [1.0, -1.0, 0.0]);
    // The boosted word within a longer word, then its first token twice.
    assert_eq!(with_returned_bonus(words, &[0, 1, 2, 3]), [1.0, 2.0, -3.0, 0.0]);
    assert_eq!(with_returned_bonus(words, &[0, 0, 1]), [1.0, 0.0, 2.0]);
    let kept = token_bonuses(&tree(words), &[0, 3, 0, 0, 1, 2], BrokenMatch::KeepBonus);
    assert_eq!(kept, [1.0, 0.0, 1.0, 1.0, 2.0, 0.0]);
}

#[test]
fn a_word_may_begin_a_longer_word() {
    let words: &[&[u32]] = &[&[6], &[6, 7, 8], &[0], &[0, 1, 3]];
    // `kin`, then `kind` (not in the list), then `kindness`.
    assert_eq!(with_returned_bonus(words, &[6, 3]), [1.0, 0.0]);
    assert_eq!(with_returned_bonus(words, &[6, 7, 3]), [1.0, 2.0, -3.0]);
    assert_eq!(with_returned_bonus(words, &[6, 7, 8, 3]), [1.0, 2.0, 2.0, 0.0]);
    // `new` keeps its bonus if `new york city` breaks, before or within a word.
    assert_eq!(with_returned_bonus(words, &[0, 1, 6]), [1.0, 2.0, -1.0]);
    assert_eq!(with_returned_bonus(words, &[0, 1, 2]), [1.0, 2.0, -2.0]);
}

#[test]
fn a_phrase_may_end_with_the_start_of_another() {
    let words: &[&[u32]] = &[&[0, 1, 6], &[1, 3]];
    // `new york kin` breaks at `city`, but `york city` is complete: a total bonus of 3.
    assert_eq!(with_returned_bonus(words, &[0, 1, 3, 9]), [1.0, 2.0, 0.0, 0.0]);
    assert_eq!(with_returned_bonus(words, &[0, 1, 4, 9]), [1.0, 2.0, -3.0, 0.0]);
    // A kept bonus counts for one phrase.
    let words: &[&[u32]] = &[&[0, 1], &[1, 3]];
    assert_eq!(with_returned_bonus(words, &[0, 1, 3, 9]), [1.0, 2.0, 0.0, 0.0]);
}

#[test]
fn without_a_space_words_begin_after_non_letters() {
    let words: &[&[u32]] = &[&[5, 7]];
    assert_eq!(with_returned_bonus(words, &[5, 7, 4]), [1.0, 2.0, 0.0]);
    assert_eq!(with_returned_bonus(words, &[0, 5, 7]), [0.0, 0.0, 0.0]);
    assert_eq!(with_returned_bonus(words, &[0, 4, 5, 7]), [0.0, 0.0, 1.0, 2.0]);
    assert_eq!(with_returned_bonus(words, &[9, 5, 7]), [0.0, 1.0, 2.0]);
}

#[test]
fn no_words_and_unknown_tokens_give_no_bonus() {
    assert!(tree(&[]).is_empty() && tree(&[&[]]).is_empty());
    assert_eq!(with_returned_bonus(&[], &[0, 1]), [0.0, 0.0]);
    // A token outside the vocabulary's texts is not a letter.
    let (tree, state) = (tree(&[&[70, 71]]), BoostState::default());
    let (state, bonus) = tree.advance(state, 70, BrokenMatch::ReturnBonus);
    assert_eq!((bonus, tree.advance(state, 0, BrokenMatch::ReturnBonus).1), (1.0, -1.0));
    let boundaries = WordBoundaries::from_tokens(["我", "é", "\u{FFFD}", "'s", ""]);
    assert_eq!(boundaries.continues_word, [false, true, true, false, false]);
    assert_eq!(boundaries.ends_in_word, [false, true, true, true, false]);
}
