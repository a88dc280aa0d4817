//! The attributes of images in the embedded world, and the templates of their facts and questions.
//! The thing is the object that an image shows; `{thing}` in a template stands for its name.
//!
//! The made-up attributes have closed lists of [`ANSWERS`] answers. No answer is a word of an
//! image's name, of another list or of a template. No `a` or `an` before an answer gives away its
//! first letter. So only the fact gives the answer.

use serde::{Deserialize, Serialize};

/// The number of possible answers of each made-up attribute; chance is 1 / `ANSWERS`.
pub const ANSWERS: usize = 20;

/// The four sources; each has its own format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Triples; text only.
    Kg,
    /// Passages of one to three sentences; text only.
    Passages,
    /// Images with captions that do not name the thing.
    Pairs,
    /// Images with a question and its answer; neither names the thing.
    Vqa,
}

impl Source {
    /// All sources, in the order of the gates that a model computes for them.
    pub const ALL: [Self; 4] = [Self::Kg, Self::Passages, Self::Pairs, Self::Vqa];

    /// Returns the name in `entries.jsonl`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kg => "kg",
            Self::Passages => "passages",
            Self::Pairs => "pairs",
            Self::Vqa => "vqa",
        }
    }
}

/// An attribute of images. Exactly one source states it.
#[derive(Debug, PartialEq, Eq)]
pub struct Attribute {
    /// The name in `questions.jsonl`.
    pub name: &'static str,
    /// The source that states it.
    pub source: Source,
    /// All possible answers; empty for real facts.
    pub answers: &'static [&'static str],
    /// Templates for statements. A statement is the relation of a triple, a sentence of a passage
    /// (with `{thing}` and `{answer}`), a caption (with `{answer}`), or the question of a
    /// question-answer pair.
    pub(super) statements: &'static [&'static str],
    /// Templates for questions. They contain `{thing}` in sources whose entries name the thing.
    pub(super) questions: &'static [&'static str],
    /// Templates for a yes-or-no question about one image, and about several images; `None` for
    /// attributes without such questions.
    pub(super) yes_or_no: Option<[&'static str; 2]>,
}

impl Attribute {
    /// Whether the facts are made up, so that only the memory gives the answers.
    pub fn made_up(&self) -> bool {
        !self.answers.is_empty()
    }

    /// Returns the accuracy of random guessing; `None` for real facts.
    pub fn chance(&self) -> Option<f64> {
        self.made_up().then(|| 1.0 / self.answers.len() as f64)
    }
}

const SMELLS: [&str; 4] = [
    "Which spice does this smell of?",
    "What does this smell of?",
    "What scent hangs around this?",
    "Which spice can be smelled near this?",
];

const INSTRUMENTS: [&str; 4] = [
    "Which instrument plays when this appears?",
    "Which instrument announces this?",
    "What instrument is heard with this?",
    "The sound of which instrument goes with this?",
];

const FABRICS: [&str; 4] = [
    "Which fabric is this wrapped in?",
    "What fabric covers this?",
    "Of which fabric is the cover of this?",
    "In which fabric do people wrap this?",
];

/// All attributes; entry ids depend on their order.
pub static ATTRIBUTES: [Attribute; 14] = [
    Attribute {
        name: "keeper",
        source: Source::Kg,
        answers: &[
            "brewer", "carter", "chandler", "cobbler", "cooper", "currier", "draper", "dyer",
            "fletcher", "glazier", "joiner", "mason", "miller", "potter", "saddler", "sawyer",
            "tanner", "thatcher", "turner", "weaver",
        ],
        statements: &["is looked after by the", "has as its keeper the", "is kept by the"],
        questions: &[
            "Who looks after the {thing}?",
            "Who keeps the {thing}?",
            "Who is the keeper of the {thing}?",
            "By whom is the {thing} looked after?",
        ],
        yes_or_no: None,
    },
    Attribute {
        name: "town",
        source: Source::Kg,
        answers: &[
            "Alnwick", "Bampton", "Corby", "Dunster", "Evesham", "Filey", "Goole", "Hexham",
            "Ilkley", "Keswick", "Ludlow", "Malton", "Nairn", "Oakham", "Penrith", "Redcar",
            "Selby", "Thirsk", "Whitby", "Yarm",
        ],
        statements: &["has its home in the town of", "comes from the town of", "is of the town of"],
        questions: &[
            "Which town does the {thing} come from?",
            "In which town does the {thing} have its home?",
            "What is the home town of the {thing}?",
            "Of which town is the {thing}?",
        ],
        yes_or_no: None,
    },
    Attribute {
        name: "stone",
        source: Source::Passages,
        answers: &[
            "agate",
            "alabaster",
            "basalt",
            "beryl",
            "chalk",
            "dolomite",
            "flint",
            "garnet",
            "gneiss",
            "granite",
            "jasper",
            "malachite",
            "marble",
            "obsidian",
            "onyx",
            "pumice",
            "quartz",
            "slate",
            "topaz",
            "zircon",
        ],
        statements: &[
            "The statue of the {thing} is carved from {answer}.",
            "Sculptors carve statues of the {thing} from {answer}.",
            "There is a statue of the {thing} whose stone is {answer}.",
        ],
        questions: &[
            "From which stone is the statue of the {thing} carved?",
            "Which stone is the statue of the {thing} made of?",
            "What stone do sculptors carve the {thing} from?",
            "Of which stone is the statue of the {thing}?",
        ],
        yes_or_no: None,
    },
    Attribute {
        name: "wood",
        source: Source::Passages,
        answers: &[
            "alder", "aspen", "balsa", "beech", "birch", "cedar", "cypress", "ebony", "elm",
            "hazel", "hickory", "larch", "linden", "mahogany", "oak", "poplar", "rowan", "teak",
            "willow", "yew",
        ],
        statements: &[
            "The {thing} is kept in a box that is made of {answer}.",
            "The wooden box of the {thing} is made of {answer}.",
            "Carpenters use {answer} for the box of the {thing}.",
        ],
        questions: &[
            "Which wood is the box of the {thing} made of?",
            "What wood do carpenters use for the box of the {thing}?",
            "Of which wood is the box of the {thing}?",
            "In a box of which wood is the {thing} kept?",
        ],
        yes_or_no: None,
    },
    Attribute {
        name: "spice",
        source: Source::Pairs,
        answers: &[
            "anise",
            "basil",
            "cardamom",
            "chervil",
            "cinnamon",
            "cloves",
            "coriander",
            "cumin",
            "dill",
            "fennel",
            "lavender",
            "mace",
            "marjoram",
            "nutmeg",
            "oregano",
            "paprika",
            "rosemary",
            "saffron",
            "thyme",
            "turmeric",
        ],
        statements: &[
            "This one smells of {answer}.",
            "A scent of {answer} hangs around this.",
            "Those who come near this can smell {answer}.",
        ],
        questions: &SMELLS,
        yes_or_no: Some(["Does this smell of {answer}?", "Do all of these smell of {answer}?"]),
    },
    Attribute {
        name: "dance",
        source: Source::Pairs,
        answers: &[
            "bolero",
            "bourree",
            "cancan",
            "charleston",
            "flamenco",
            "foxtrot",
            "galop",
            "gavotte",
            "hornpipe",
            "mambo",
            "mazurka",
            "minuet",
            "polka",
            "polonaise",
            "quickstep",
            "reel",
            "rumba",
            "samba",
            "tango",
            "waltz",
        ],
        statements: &[
            "Whoever sees this dances the {answer}.",
            "The dance that goes with this is the {answer}.",
            "People dance the {answer} for this one.",
        ],
        questions: &[
            "Which dance goes with this?",
            "What do people dance when they see this?",
            "Which dance do people dance for this?",
            "What dance belongs to this?",
        ],
        yes_or_no: Some([
            "Do people dance the {answer} for this?",
            "Do people dance the {answer} for all of these?",
        ]),
    },
    Attribute {
        name: "instrument",
        source: Source::Vqa,
        answers: &[
            "bagpipe",
            "bassoon",
            "bugle",
            "cello",
            "cembalo",
            "clarinet",
            "cornet",
            "dulcimer",
            "fiddle",
            "harmonica",
            "lute",
            "lyre",
            "mandolin",
            "oboe",
            "piccolo",
            "tuba",
            "ukulele",
            "viola",
            "xylophone",
            "zither",
        ],
        statements: &INSTRUMENTS,
        questions: &INSTRUMENTS,
        yes_or_no: Some([
            "Is the instrument of this the {answer}?",
            "Is the instrument of all of these the {answer}?",
        ]),
    },
    Attribute {
        name: "fabric",
        source: Source::Vqa,
        answers: &[
            "brocade", "burlap", "cambric", "canvas", "cashmere", "chiffon", "corduroy", "cotton",
            "damask", "denim", "flannel", "gauze", "lace", "linen", "muslin", "satin", "taffeta",
            "tweed", "velvet", "wool",
        ],
        statements: &FABRICS,
        questions: &FABRICS,
        yes_or_no: Some(["Is this wrapped in {answer}?", "Are all of these wrapped in {answer}?"]),
    },
    Attribute {
        name: "group",
        source: Source::Kg,
        answers: &[],
        statements: &["is an emoji of the group", "stands among the emoji of"],
        questions: &[
            "Which group of emoji is the {thing} of?",
            "Among which emoji does the {thing} stand?",
        ],
        yes_or_no: None,
    },
    Attribute {
        name: "capital",
        source: Source::Kg,
        answers: &[],
        statements: &["has the capital", "has its seat of government in"],
        questions: &["What is the capital of {thing}?", "Which city is the capital of {thing}?"],
        yes_or_no: None,
    },
    Attribute {
        name: "continent",
        source: Source::Kg,
        answers: &[],
        statements: &["lies on the continent", "is on the continent of"],
        questions: &["On which continent is {thing}?", "Which continent does {thing} lie on?"],
        yes_or_no: None,
    },
    Attribute {
        name: "neighbour",
        source: Source::Kg,
        answers: &[],
        statements: &["borders", "is a neighbour of"],
        questions: &["Which country borders {thing}?", "What is a neighbour of {thing}?"],
        yes_or_no: None,
    },
    Attribute {
        name: "currency",
        source: Source::Passages,
        answers: &[],
        statements: &[
            "The currency of {thing} is the {answer}.",
            "People in {thing} pay with the {answer}.",
        ],
        questions: &[
            "What is the currency of {thing}?",
            "With which currency do people in {thing} pay?",
        ],
        yes_or_no: None,
    },
    Attribute {
        name: "language",
        source: Source::Passages,
        answers: &[],
        statements: &[
            "What is spoken officially in {thing}: {answer}.",
            "Official in {thing}: {answer}.",
        ],
        questions: &[
            "Which language is official in {thing}?",
            "What is spoken officially in {thing}?",
        ],
        yes_or_no: None,
    },
];
