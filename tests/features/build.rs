//! cargo considers the build dependencies only of a package with a build script.

fn main() {}
