use base::ObjectId;

/// Reasons why a log, or the data of one of its records, could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A block that should exist cannot be read.
    #[error(transparent)]
    Zio(#[from] zio::Error),
    /// A record does not have the form that its type requires.
    #[error("intent log of dataset {objset}, record {seq}: {source}")]
    Record {
        /// The dataset's object number.
        objset: ObjectId,
        /// The record's sequence number.
        seq: u64,
        /// The decoding error.
        source: ondisk::Error,
    },
    /// An object cannot be read or changed.
    #[error(transparent)]
    Dmu(#[from] dmu::Error),
    /// The pool refused the operation: it is suspended or closed, or has no space. Holds the pool's own error.
    #[error("{0}")]
    Pool(Box<dyn std::error::Error + Send + Sync>),
    /// The log cannot be written now.
    #[error("intent log of dataset {objset}: {what}")]
    Unusable {
        /// The dataset's object number.
        objset: ObjectId,
        /// The reason.
        what: &'static str,
    },
    /// The devices do not answer for what the replay of a log needs: the log stays as it is, to be replayed when they are back.
    #[error("intent log of dataset {objset} is kept, and not replayed until this can be read: {source}")]
    Unanswered {
        /// The dataset's object number.
        objset: ObjectId,
        /// The block, and what failed.
        source: zio::Error,
    },
    /// The listing of a log could not be written out.
    #[error("writing: {0}")]
    Write(#[from] std::io::Error),
}

impl Error {
    /// True if no device said what a block holds: it may be readable when they answer again.
    #[must_use]
    pub fn is_unanswered(&self) -> bool {
        match self {
            Error::Zio(error) => error.is_unanswered(),
            Error::Dmu(error) => error.is_unanswered(),
            Error::Unanswered { .. } => true,
            _ => false,
        }
    }
}
