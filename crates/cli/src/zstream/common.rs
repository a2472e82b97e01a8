//! The usage of `zstream`, and what its verbs share.

/// What `zuse help zstream` prints.
pub(crate) const USAGE: &str = "usage: zstream command args ...
Available commands are:

\tzstream dump [-vCdj] FILE
\t... | zstream dump [-vCdj]

\tzstream decompress [-v] [OBJECT,OFFSET[,TYPE]] ...

\tzstream drop_record [-v] [OBJECT,OFFSET] ...

\tzstream recompress [-l level] TYPE

\tzstream token [-j] resume_token

\tzstream redup [-v] FILE | ...
";

/// Bytes that are read at once; payloads of large blocks go past this buffer.
pub(super) const READ_BYTES: usize = 256 << 10;

/// Prints the usage. The exit status is 1, not 2, as in OpenZFS's `zstream`.
pub(super) fn usage() -> u8 {
    eprint!("{USAGE}");
    1
}
