/// Why a log, or the data of one of its records, could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A block that should be there is not readable.
    #[error(transparent)]
    Zio(#[from] zio::Error),
    /// A record is not what its type demands.
    #[error("intent log of dataset {objset}, record {seq}: {source}")]
    Record {
        /// The dataset's object number.
        objset: u64,
        /// The record's sequence number.
        seq: u64,
        /// What is wrong.
        source: ondisk::Error,
    },
    /// An object cannot be read or changed.
    #[error(transparent)]
    Dmu(#[from] dmu::Error),
    /// The pool refuses: it is suspended or closed, or has no space. What is behind is an error of the pool.
    #[error("{0}")]
    Pool(Box<dyn std::error::Error + Send + Sync>),
    /// The log cannot be written now.
    #[error("intent log of dataset {objset}: {what}")]
    Unusable {
        /// The dataset's object number.
        objset: u64,
        /// Why.
        what: &'static str,
    },
    /// A list cannot be written.
    #[error("writing: {0}")]
    Write(#[from] std::io::Error),
}
