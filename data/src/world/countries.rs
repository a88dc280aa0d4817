//! Real facts about the countries whose flags are in the embedded world.
//!
//! # Source   `countries.tsv`, made by `tests/reference/countries.py` from GeoNames (CC-BY 4.0) and
//! Unicode CLDR

/// A country in the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Country {
    /// The ISO 3166-1 alpha-2 code.
    pub code: &'static str,
    /// The name in English.
    pub name: &'static str,
    /// The continent.
    pub continent: &'static str,
    /// The capital; `None` if the country has none.
    pub capital: Option<&'static str>,
    /// The currency, which the country may share with others; `None` if it has none.
    pub currency: Option<&'static str>,
    /// Languages that are official in the whole country, ordered by number of speakers.
    pub languages: Vec<&'static str>,
    /// Countries with a common land border.
    pub neighbours: Vec<&'static str>,
}

/// Returns all countries in the table, ordered by code.
pub fn countries() -> Vec<Country> {
    include_str!("countries.tsv").lines().skip(1).filter_map(parse_country).collect()
}

/// Parses a line of the table; returns `None` for an invalid line. A test checks that all lines are
/// valid.
fn parse_country(line: &'static str) -> Option<Country> {
    let mut columns = line.split('\t');
    let mut column = || columns.next();
    let list = |text: &'static str| text.split(',').filter(|item| !item.is_empty()).collect();
    Some(Country {
        code: column()?,
        name: column()?,
        continent: column()?,
        capital: column().filter(|name| !name.is_empty()),
        currency: column().filter(|name| !name.is_empty()),
        languages: list(column()?),
        neighbours: list(column()?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_a_country() {
        let countries = countries();
        assert_eq!(countries.len(), include_str!("countries.tsv").lines().count() - 1);
        let Some(switzerland) = countries.iter().find(|country| country.code == "CH") else {
            panic!("no Switzerland")
        };
        assert_eq!((switzerland.capital, switzerland.continent), (Some("Bern"), "Europe"));
        assert_eq!(switzerland.languages, ["German", "French", "Italian"]);
        let neighbours = ["Austria", "France", "Germany", "Italy", "Liechtenstein"];
        assert_eq!(switzerland.neighbours, neighbours);
        let names: Vec<&str> = countries.iter().map(|country| country.name).collect();
        let neighbours = countries.iter().flat_map(|country| &country.neighbours);
        assert!(neighbours.into_iter().all(|neighbour| names.contains(neighbour)));
    }
}
