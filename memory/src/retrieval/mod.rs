//! Retrieval beyond the nearest keys: diverse entries, search in texts, and fused searches.
//!
//! | module | responsibility |
//! |---|---|
//! | [`mmr`] | maximal marginal relevance: relevant entries that differ from each other |
//! | [`text`] | BM25 search in the texts of the entries |
//! | [`rank_fusion`] | reciprocal rank fusion of a search by keys and a search by texts |

pub mod mmr;
pub mod rank_fusion;
pub mod text;
