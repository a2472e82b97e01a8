//! Where an endpoint is reached.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

/// The address of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A port of TCP; 0 stands for any that is free.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

/// `HOST:PORT` with a number for the host or `localhost`; `:PORT` and `PORT` are on the loopback interface. `/PATH` and `unix:PATH` are Unix sockets.
impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Address::Unix(path.into()));
        }
        if text.starts_with('/') {
            return Ok(Address::Unix(text.into()));
        }
        let local = text.strip_prefix("localhost:").or_else(|| text.strip_prefix(':')).unwrap_or(text);
        if let Ok(port) = local.parse::<u16>() {
            return Ok(Address::Tcp(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)));
        }
        text.parse()
            .map(Address::Tcp)
            .map_err(|_| format!("'{text}': HOST:PORT, PORT or the path of a socket is expected"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_local_unless_they_say_otherwise() {
        let tcp = |text: &str| Address::Tcp(text.parse().unwrap());
        for (text, address) in [
            ("9134", tcp("127.0.0.1:9134")),
            (":9134", tcp("127.0.0.1:9134")),
            ("localhost:9134", tcp("127.0.0.1:9134")),
            ("0.0.0.0:9134", tcp("0.0.0.0:9134")),
            ("[::1]:9134", tcp("[::1]:9134")),
            ("/run/zuse.sock", Address::Unix("/run/zuse.sock".into())),
            ("unix:z.sock", Address::Unix("z.sock".into())),
        ] {
            assert_eq!(text.parse(), Ok(address), "{text}");
        }
        for bad in ["", "host", "host:9134", "127.0.0.1", "70000", ":", "unix:"] {
            assert!(bad.parse::<Address>().is_err(), "{bad}");
        }
    }
}
