//! The words of the synthetic phrase set: families of things, and qualities that the things can
//! have.
//!
//! Four words have a meaning in two families (joint, plate, filter, drum); the context decides
//! which words are their synonyms.

/// Things of one kind, in one CPC class.
pub(super) struct Family {
    /// The CPC class of these words.
    pub(super) context: &'static str,
    /// The title of that class.
    pub(super) title: &'static str,
    /// Two synonymous names of the kind.
    pub(super) kind: [&'static str; 2],
    /// Three things of the kind, each with two synonymous names.
    pub(super) things: [[&'static str; 2]; 3],
    /// Words that are related to the kind but are not of the kind.
    pub(super) related: [&'static str; 2],
}

/// A quality, as an adjective before a thing.
pub(super) struct Quality {
    /// Two synonyms.
    pub(super) names: [&'static str; 2],
    /// Narrower qualities.
    pub(super) narrower: &'static [&'static str],
    /// The opposite quality; `None` if there is none in the word list.
    pub(super) opposite: Option<&'static str>,
}

/// All families; each has its own context.
pub(super) const FAMILIES: [Family; 8] = [
    Family {
        context: "A47",
        title: "Furniture; domestic articles or appliances; coffee mills; spice mills; suction cleaners in general",
        kind: ["tableware", "serving ware"],
        things: [["plate", "dish"], ["cup", "mug"], ["spoon", "ladle"]],
        related: ["tray", "napkin"],
    },
    Family {
        context: "A61",
        title: "Medical or veterinary science; hygiene",
        kind: ["implant", "prosthesis"],
        things: [
            ["joint", "articulation"],
            ["stent", "vessel support"],
            ["denture", "artificial teeth"],
        ],
        related: ["tissue", "surgery"],
    },
    Family {
        context: "B01",
        title: "Physical or chemical processes or apparatus in general",
        kind: ["separator", "purifier"],
        things: [
            ["filter", "strainer"],
            ["centrifuge", "spin extractor"],
            ["evaporator", "boiling vessel"],
        ],
        related: ["sediment", "slurry"],
    },
    Family {
        context: "B65",
        title: "Conveying; packing; storing; handling thin or filamentary material",
        kind: ["container", "receptacle"],
        things: [["drum", "barrel"], ["tank", "reservoir"], ["bottle", "flask"]],
        related: ["lid", "label"],
    },
    Family {
        context: "F16",
        title: "Engineering elements or units; general measures for producing and maintaining effective functioning of machines or installations",
        kind: ["fastener", "securing element"],
        things: [["joint", "coupling"], ["bolt", "threaded rod"], ["clip", "clasp"]],
        related: ["washer", "thread"],
    },
    Family {
        context: "G10",
        title: "Musical instruments; acoustics",
        kind: ["instrument", "music maker"],
        things: [["drum", "percussion skin"], ["violin", "fiddle"], ["flute", "fife"]],
        related: ["melody", "tuning"],
    },
    Family {
        context: "H01",
        title: "Electric elements",
        kind: ["electric element", "electrical component"],
        things: [["plate", "electrode"], ["battery", "accumulator"], ["capacitor", "condenser"]],
        related: ["terminal", "charge"],
    },
    Family {
        context: "H03",
        title: "Electronic circuitry",
        kind: ["circuit", "electronic stage"],
        things: [
            ["filter", "equaliser"],
            ["amplifier", "booster"],
            ["oscillator", "frequency generator"],
        ],
        related: ["gain", "voltage"],
    },
];

/// All qualities.
pub(super) const QUALITIES: [Quality; 16] = [
    Quality { names: ["metal", "metallic"], narrower: &["steel", "aluminium"], opposite: None },
    Quality {
        names: ["plastic", "polymeric"],
        narrower: &["nylon", "polyethylene"],
        opposite: None,
    },
    Quality { names: ["wooden", "timber"], narrower: &["oak", "bamboo"], opposite: None },
    Quality {
        names: ["ceramic", "fired clay"],
        narrower: &["porcelain", "stoneware"],
        opposite: None,
    },
    Quality { names: ["flexible", "pliable"], narrower: &["rubbery"], opposite: Some("rigid") },
    Quality {
        names: ["removable", "detachable"],
        narrower: &["slide out"],
        opposite: Some("permanent"),
    },
    Quality {
        names: ["transparent", "see through"],
        narrower: &["colourless"],
        opposite: Some("opaque"),
    },
    Quality {
        names: ["miniature", "compact"],
        narrower: &["microscopic"],
        opposite: Some("bulky"),
    },
    Quality {
        names: ["automatic", "self acting"],
        narrower: &["robotic"],
        opposite: Some("manual"),
    },
    Quality {
        names: ["adjustable", "variable"],
        narrower: &["stepped"],
        opposite: Some("constant"),
    },
    Quality {
        names: ["rotating", "revolving"],
        narrower: &["spinning"],
        opposite: Some("stationary"),
    },
    Quality { names: ["heated", "warmed"], narrower: &["steam heated"], opposite: Some("chilled") },
    Quality {
        names: ["waterproof", "watertight"],
        narrower: &["submersible"],
        opposite: Some("porous"),
    },
    Quality {
        names: ["disposable", "single use"],
        narrower: &["compostable"],
        opposite: Some("reusable"),
    },
    Quality {
        names: ["folding", "collapsible"],
        narrower: &["telescopic"],
        opposite: Some("unbending"),
    },
    Quality {
        names: ["coated", "covered"],
        narrower: &["lacquered", "galvanised"],
        opposite: Some("bare"),
    },
];
