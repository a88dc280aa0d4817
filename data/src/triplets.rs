//! Facts as triplets of subject, relation and object, and prompts that ask for the object.
//!
//! [`generate`] makes up databases of such facts, for training, and [`edits`] changes them; [`audit`]
//! reads published ones.

pub mod audit;
pub mod edits;
pub mod generate;

/// A fact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Triplet {
    /// What the fact is about.
    pub subject: String,
    /// The relation of subject and object.
    pub relation: String,
    /// The answer to a question about subject and relation.
    pub object: String,
}

impl Triplet {
    /// The text of the fact's entry in a memory. The object comes first, so that a model that reads
    /// entries has to copy their beginning.
    pub fn text(&self) -> String {
        format!("{}: {} of {}", self.object, self.relation, self.subject)
    }
}

/// The style of a prompt. The wording is that of the audit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// A question.
    Direct,
    /// A question after a polite beginning.
    Paraphrased,
    /// A question after a sentence about its purpose.
    Contextual,
    /// A question after two others with their answers.
    FewShot,
    /// A sentence with a gap for the object.
    Cloze,
    /// The beginning of a sentence, which the object completes.
    Continuation,
}

impl Style {
    /// All styles.
    pub const ALL: [Self; 6] = [
        Self::Direct,
        Self::Paraphrased,
        Self::Contextual,
        Self::FewShot,
        Self::Cloze,
        Self::Continuation,
    ];

    /// The prompt about `subject` from a question and the beginning of a sentence that the object
    /// completes.
    pub fn prompt(self, subject: &str, question: &str, sentence: &str) -> String {
        const FEW_SHOT: &str = "Answer the final question with a short factual phrase.\n\n\
            Question: Where was Ada Lovelace born?\nAnswer: London\n\n\
            Question: In what year was Pride and Prejudice published?\nAnswer: 1813\n\n";
        match self {
            Self::Direct => question.to_owned(),
            Self::Paraphrased => format!("Could you answer this question: {question}"),
            Self::Contextual => format!(
                "Context: I am compiling a concise factual profile for {subject}. Answer with a short \
                 factual phrase.\nQuestion: {question}"
            ),
            Self::FewShot => format!("{FEW_SHOT}Question: {question}\nAnswer:"),
            Self::Cloze => {
                format!("Complete the sentence with the missing fact: {sentence} ____.")
            }
            Self::Continuation => format!("Tell me about {subject}. {sentence}"),
        }
    }
}
