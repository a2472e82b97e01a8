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
    /// A list cannot be written.
    #[error("writing: {0}")]
    Write(#[from] std::io::Error),
}
