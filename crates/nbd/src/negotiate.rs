//! Fixed newstyle negotiation: a client asks about exports, and chooses one.

use std::borrow::Cow;
use std::io::{self, Read, Write};
use std::sync::Arc;

use base::Errno;

use crate::proto::{
    Fields, IHAVEOPT, NBDMAGIC, OPTION_REPLY_MAGIC, PAYLOAD_MAX, allocation, flag, handshake, info, option, rep, skip,
    take,
};
use crate::{Export, Exports, Failed, Listed, Named};

/// Bytes of an option that are read: some names of 4,096 bytes, which is the most that a string may have.
pub const OPTION_MAX: u32 = 64 << 10;
/// Bytes of a longer option that are passed over, so that it can be refused and another one sent.
const SKIP_MAX: u32 = 16 << 20;
/// The smallest block that can be read and written.
const BLOCK_MIN: u32 = 1;
/// The smallest preferred block that may be told.
const PREFERRED_MIN: u64 = 512;

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The client is gone, or takes too long.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The client does not keep to the protocol, and what it sends next cannot be understood.
    #[error("{0}")]
    Violation(&'static str),
}

/// What a client has chosen.
#[derive(Clone)]
pub struct Chosen {
    pub(crate) export: Arc<dyn Export>,
    /// The size that the client was told.
    pub(crate) size: u64,
    /// Replies are structured.
    pub(crate) structured: bool,
    /// The context `base:allocation` is selected.
    pub(crate) allocation: bool,
    /// It was chosen by `NBD_OPT_GO`.
    pub(crate) by_go: bool,
}

impl Chosen {
    /// An export of a size, with all that can be negotiated.
    #[cfg(test)]
    pub(crate) fn new(export: Arc<dyn Export>, size: u64) -> Chosen {
        Chosen { export, size, structured: true, allocation: true, by_go: true }
    }

    /// Returns whether replies are structured.
    #[must_use]
    pub fn is_structured(&self) -> bool {
        self.structured
    }

    /// Returns whether it was chosen by `NBD_OPT_GO`, and not by `NBD_OPT_EXPORT_NAME`.
    #[must_use]
    pub fn by_go(&self) -> bool {
        self.by_go
    }
}

/// How the connection of a negotiation is secured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Security {
    /// It is not, and cannot be.
    None,
    /// The client may begin TLS.
    Offered,
    /// The client has to begin TLS before it is told of anything.
    Required,
    /// There is TLS.
    Begun,
}

/// How a negotiation ends.
#[derive(Clone)]
pub enum Outcome {
    /// The client has chosen an export.
    Chosen(Chosen),
    /// The client begins TLS. The negotiation begins anew behind it, without a greeting ([`negotiate_secured`]).
    StartTls {
        /// What the client has said to the greeting: it expects no zeros after the reply to `NBD_OPT_EXPORT_NAME`.
        no_zeroes: bool,
    },
    /// The client has left, or has asked for an export that is not there in a way that has no other answer.
    Left,
}

/// Greets a client and negotiates with it.
///
/// # Errors
/// As [`Error`] says.
pub fn negotiate(
    input: &mut impl Read,
    output: &mut impl Write,
    exports: &dyn Exports,
    security: Security,
) -> Result<Outcome, Error> {
    let flags = handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES;
    output.write_all(&[&NBDMAGIC.to_be_bytes()[..], &IHAVEOPT.to_be_bytes(), &flags.to_be_bytes()].concat())?;
    let mut answer = [0; 4];
    input.read_exact(&mut answer)?;
    let answer = u32::from_be_bytes(answer);
    if answer & !u32::from(flags) != 0 {
        return Err(Error::Violation("a flag of the client is not known"));
    }
    let no_zeroes = answer & u32::from(handshake::NO_ZEROES) != 0;
    Negotiation { input, output, exports, security, no_zeroes, structured: false, context: None, last: None }.run()
}

/// Negotiates with a client that has begun TLS: nothing of what it said before holds, but for the flag.
///
/// # Errors
/// As [`Error`] says.
pub fn negotiate_secured(
    input: &mut impl Read,
    output: &mut impl Write,
    exports: &dyn Exports,
    no_zeroes: bool,
) -> Result<Outcome, Error> {
    let security = Security::Begun;
    Negotiation { input, output, exports, security, no_zeroes, structured: false, context: None, last: None }.run()
}

struct Negotiation<'a, R, W> {
    input: &'a mut R,
    output: &'a mut W,
    exports: &'a dyn Exports,
    security: Security,
    no_zeroes: bool,
    structured: bool,
    /// The name for which `base:allocation` is selected.
    context: Option<Vec<u8>>,
    /// The export for which a context was selected, by the name by which: it is likely the one that will be chosen. One that a client has only asked about is not held.
    last: Option<(Vec<u8>, Named)>,
}

/// An error that is the reply to an option: its type, and a message for a person.
type Refused = (u32, Cow<'static, str>);

const MALFORMED: Refused = (rep::ERR_INVALID, Cow::Borrowed("the data of the option is malformed"));
const UNKNOWN: Refused = (rep::ERR_UNKNOWN, Cow::Borrowed("there is no export of this name"));
const NEEDS_TLS: Refused = (rep::ERR_TLS_REQD, Cow::Borrowed("this server serves nobody without TLS"));

impl<R: Read, W: Write> Negotiation<'_, R, W> {
    fn run(mut self) -> Result<Outcome, Error> {
        loop {
            let mut header = [0; 16];
            self.input.read_exact(&mut header)?;
            let mut fields = Fields::new(&header);
            let (Some(IHAVEOPT), Some(number), Some(len)) = (fields.u64(), fields.u32(), fields.u32()) else {
                return Err(Error::Violation("an option begins with another magic number"));
            };
            if len > OPTION_MAX {
                if len > SKIP_MAX || number == option::EXPORT_NAME {
                    return Err(Error::Violation("an option is too long"));
                }
                skip(self.input, len.into())?;
                self.reply(number, rep::ERR_TOO_BIG, b"the option is too long")?;
                continue;
            }
            let data = take(self.input, len as usize)?;
            match number {
                option::ABORT => {
                    // a client that has gone does not wait for it
                    let _sent = self.reply(number, rep::ACK, &[]);
                    return Ok(Outcome::Left);
                }
                option::STARTTLS => match self.start_tls(&data) {
                    Ok(()) => {
                        self.reply(number, rep::ACK, &[])?;
                        return Ok(Outcome::StartTls { no_zeroes: self.no_zeroes });
                    }
                    Err(refused) => self.refuse(number, &refused)?,
                },
                // it has no reply that is an error
                option::EXPORT_NAME if self.security == Security::Required => return Ok(Outcome::Left),
                _ if self.security == Security::Required => self.refuse(number, &NEEDS_TLS)?,
                option::EXPORT_NAME => return self.export_name(&data),
                option::GO => match self.info(number, &data)? {
                    Ok((name, named)) => return Ok(Outcome::Chosen(self.choose(&name, named, true))),
                    Err(refused) => self.refuse(number, &refused)?,
                },
                _ => {
                    let done = match number {
                        option::LIST => self.list(number, &data)?,
                        option::INFO => {
                            let told = self.info(number, &data)?.map(drop);
                            self.last = None;
                            told
                        }
                        option::STRUCTURED_REPLY => self.structured_reply(number, &data)?,
                        option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.meta_context(number, &data)?,
                        _ => Err((rep::ERR_UNSUP, "this server does not have the option".into())),
                    };
                    if let Err(refused) = done {
                        self.refuse(number, &refused)?;
                    }
                }
            }
        }
    }

    /// `NBD_OPT_STARTTLS`.
    fn start_tls(&self, data: &[u8]) -> Result<(), Refused> {
        match self.security {
            Security::None => Err((rep::ERR_UNSUP, "this server has no TLS".into())),
            Security::Begun => Err((rep::ERR_INVALID, "there is TLS already".into())),
            _ if !data.is_empty() => Err(MALFORMED),
            Security::Offered | Security::Required => Ok(()),
        }
    }

    fn reply(&mut self, number: u32, kind: u32, data: &[u8]) -> io::Result<()> {
        let (magic, len) = (OPTION_REPLY_MAGIC.to_be_bytes(), (data.len() as u32).to_be_bytes());
        self.output.write_all(&[&magic[..], &number.to_be_bytes(), &kind.to_be_bytes(), &len, data].concat())
    }

    fn refuse(&mut self, number: u32, (kind, why): &Refused) -> io::Result<()> {
        self.reply(number, *kind, why.as_bytes())
    }

    /// Finds the export of this name.
    fn find(&mut self, name: &[u8]) -> Result<Named, Refused> {
        if let Some((_, named)) = self.last.as_ref().filter(|(last, _)| last == name) {
            return Ok(named.clone());
        }
        // the one before is of no use any more, and need not be held
        self.last = None;
        let text = std::str::from_utf8(name).map_err(|_| UNKNOWN)?;
        let named = self.exports.find(text).map_err(|failed| refusal(&failed))?.ok_or(UNKNOWN)?;
        self.last = Some((name.to_vec(), named.clone()));
        Ok(named)
    }

    fn choose(&self, name: &[u8], Named { export, .. }: Named, by_go: bool) -> Chosen {
        // a context was selected for a name, and no name is one of the default export
        let allocation = self.context.as_deref() == Some(name);
        Chosen { size: export.size(), structured: self.structured, allocation, by_go, export }
    }

    fn export_name(mut self, name: &[u8]) -> Result<Outcome, Error> {
        let Ok(named) = self.find(name) else { return Ok(Outcome::Left) };
        let chosen = self.choose(name, named, false);
        let mut answer = chosen.size.to_be_bytes().to_vec();
        answer.extend(flags(&*chosen.export, self.structured).to_be_bytes());
        if !self.no_zeroes {
            answer.extend([0; handshake::ZEROES]);
        }
        self.output.write_all(&answer)?;
        Ok(Outcome::Chosen(chosen))
    }

    fn list(&mut self, number: u32, data: &[u8]) -> io::Result<Result<(), Refused>> {
        if !data.is_empty() {
            return Ok(Err(MALFORMED));
        }
        let all = match self.exports.list() {
            Ok(all) => all,
            Err(failed) => return Ok(Err(refusal(&failed))),
        };
        for Listed { name, description } in all {
            let about = [&(name.len() as u32).to_be_bytes(), name.as_bytes(), description.as_bytes()].concat();
            self.reply(number, rep::SERVER, &about)?;
        }
        self.reply(number, rep::ACK, &[])?;
        Ok(Ok(()))
    }

    /// `NBD_OPT_INFO`, `NBD_OPT_GO`. Returns the export, with the name by which it was asked for.
    fn info(&mut self, number: u32, data: &[u8]) -> io::Result<Result<(Vec<u8>, Named), Refused>> {
        let Some((name, wanted)) = decode_info(data) else { return Ok(Err(MALFORMED)) };
        let named = match self.find(name) {
            Ok(named) => named,
            Err(refused) => return Ok(Err(refused)),
        };
        let (size, flags) = (named.export.size(), flags(&*named.export, self.structured));
        let about = [&info::EXPORT.to_be_bytes()[..], &size.to_be_bytes(), &flags.to_be_bytes()].concat();
        self.reply(number, rep::INFO, &about)?;
        if wanted.contains(&info::NAME) {
            let about = [&info::NAME.to_be_bytes(), named.name.as_bytes()].concat();
            self.reply(number, rep::INFO, &about)?;
        }
        if wanted.contains(&info::DESCRIPTION) {
            let about = [&info::DESCRIPTION.to_be_bytes(), named.description.as_bytes()].concat();
            self.reply(number, rep::INFO, &about)?;
        }
        if wanted.contains(&info::BLOCK_SIZE) {
            let preferred = named.export.block_size().clamp(PREFERRED_MIN, PAYLOAD_MAX.into()) as u32;
            let sizes = [BLOCK_MIN, preferred, PAYLOAD_MAX].map(u32::to_be_bytes).concat();
            self.reply(number, rep::INFO, &[&info::BLOCK_SIZE.to_be_bytes()[..], &sizes].concat())?;
        }
        self.reply(number, rep::ACK, &[])?;
        Ok(Ok((name.to_vec(), named)))
    }

    fn structured_reply(&mut self, number: u32, data: &[u8]) -> io::Result<Result<(), Refused>> {
        if !data.is_empty() {
            return Ok(Err(MALFORMED));
        }
        self.structured = true;
        self.reply(number, rep::ACK, &[])?;
        Ok(Ok(()))
    }

    /// `NBD_OPT_LIST_META_CONTEXT`, `NBD_OPT_SET_META_CONTEXT`.
    fn meta_context(&mut self, number: u32, data: &[u8]) -> io::Result<Result<(), Refused>> {
        let sets = number == option::SET_META_CONTEXT;
        if sets {
            // also if it fails
            self.context = None;
        }
        if !self.structured {
            return Ok(Err((rep::ERR_INVALID, "structured replies have not been negotiated".into())));
        }
        let Some((name, queries)) = decode_queries(data) else { return Ok(Err(MALFORMED)) };
        if let Err(refused) = self.find(name) {
            return Ok(Err(refused));
        }
        let names_it = queries.contains(&allocation::NAME);
        let asks_for_all = !sets && (queries.is_empty() || queries.contains(&allocation::WILDCARD));
        if names_it || asks_for_all {
            let id = if sets { allocation::ID } else { 0 };
            self.reply(number, rep::META_CONTEXT, &[&id.to_be_bytes(), allocation::NAME].concat())?;
        }
        if sets && names_it {
            self.context = Some(name.to_vec());
        } else {
            self.last = None;
        }
        self.reply(number, rep::ACK, &[])?;
        Ok(Ok(()))
    }
}

/// The reply to an option about an export that cannot be used.
fn refusal(failed: &Failed) -> Refused {
    let kind = match failed.errno {
        Errno::EACCES | Errno::EPERM => rep::ERR_POLICY,
        _ => rep::ERR_UNKNOWN,
    };
    (kind, failed.why.clone().into())
}

/// The name of an export, and the types of information that are asked for.
fn decode_info(data: &[u8]) -> Option<(&[u8], Vec<u16>)> {
    let mut fields = Fields::new(data);
    let (name, count) = (fields.string()?, fields.u16()?);
    let wanted = (0..count).map(|_| fields.u16()).collect::<Option<Vec<u16>>>()?;
    fields.is_empty().then_some((name, wanted))
}

/// The name of an export, and queries.
fn decode_queries(data: &[u8]) -> Option<(&[u8], Vec<&[u8]>)> {
    let mut fields = Fields::new(data);
    let (name, count) = (fields.string()?, fields.u32()?);
    // each has four bytes at least: a count that lies ends with the data
    let queries = (0..count).map(|_| fields.string()).collect::<Option<Vec<&[u8]>>>()?;
    fields.is_empty().then_some((name, queries))
}

/// The transmission flags of an export.
fn flags(export: &dyn Export, structured: bool) -> u16 {
    let always = flag::HAS_FLAGS | flag::SEND_FLUSH | flag::SEND_FUA | flag::CAN_MULTI_CONN | flag::SEND_CACHE;
    let writable = match export.is_read_only() {
        true => flag::READ_ONLY,
        false => flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO,
    };
    always | writable | if structured { flag::SEND_DF } else { 0 }
}
