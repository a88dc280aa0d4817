//! Tests and benchmarks of single crates depend on this crate, so that cargo chooses the features
//! of their dependencies as for the program, and reuses what a release build has compiled.
