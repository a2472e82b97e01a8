//! Command lines that are carried out by the server.
#![allow(clippy::unwrap_used)]
#![allow(dead_code)]

#[path = "../../site/tests/support/mod.rs"]
mod state;
mod support;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use base::Errno;
use rustix::fs::{Mode, OFlags, openat};
use serve::{Client, Command, Options, Request, Runner};
use site::Machine;
use state::in_own_state;
use support::{Serving, client, errno};

/// Carries out a few words that tell what it was given.
struct Words;

impl Runner for Words {
    fn run(&self, command: Command, _: &Machine) -> u8 {
        let Command { args, environment, input, output, error, directory, caller, signals, cancel, .. } = command;
        let (mut input, mut output, mut error) = (File::from(input), File::from(output), File::from(error));
        let words: Vec<&str> = args.iter().map(|arg| arg.to_str().unwrap()).collect();
        match words[..] {
            ["copy"] => {
                let mut bytes = Vec::new();
                input.read_to_end(&mut bytes).unwrap();
                output.write_all(&bytes).unwrap();
                writeln!(error, "{} bytes for {}", bytes.len(), caller.uid).unwrap();
                0
            }
            ["read", name] => {
                let file = openat(&directory, name, OFlags::RDONLY, Mode::empty()).unwrap();
                io::copy(&mut File::from(file), &mut output).unwrap();
                3
            }
            ["environment"] => {
                for (name, value) in environment {
                    writeln!(output, "{}={}", name.display(), value.display()).unwrap();
                }
                0
            }
            ["signals"] => {
                output.write_all(b"ready").unwrap();
                while !cancel.is_cancelled() {
                    if let Ok(signal) = signals.recv_timeout(Duration::from_millis(10)) {
                        return 128 + u8::try_from(signal).unwrap();
                    }
                }
                // the client is gone, and sees this nevertheless, as it holds the other end
                output.write_all(b" hung up").unwrap();
                1
            }
            _ => panic!("a bug of the runner"),
        }
    }
}

fn begin(client: &Client, words: &[&str], input: impl AsFd, output: impl AsFd) -> Request {
    let words = words.iter().map(OsString::from).collect();
    let directory = File::open(std::env::var_os("ZUSE_MACHINE_CHILD").unwrap()).unwrap();
    client.begin_run(words, [input.as_fd(), output.as_fd(), output.as_fd()], directory, 0o22).unwrap()
}

fn status(request: &Request) -> Result<Option<u64>, Errno> {
    errno(request.wait()).map(|out| out.get_u64("status"))
}

/// Runs words with nothing to read; what they write, and the status.
fn said(client: &Client, words: &[&str]) -> (String, Option<u64>) {
    let (mut reader, writer) = io::pipe().unwrap();
    let request = begin(client, words, File::open("/dev/null").unwrap(), &writer);
    drop(writer);
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    (text, status(&request).unwrap())
}

fn serving() -> Serving {
    Serving::begin(Options { runner: Some(Arc::new(Words)), ..Options::default() })
}

#[test]
fn a_command_has_its_clients_descriptors_directory_and_signals() {
    in_own_state("a_command_has_its_clients_descriptors_directory_and_signals", |dir| {
        let serving = serving();
        let one = client();
        let (reader, mut writer) = io::pipe().unwrap();
        let (mut output, end) = io::pipe().unwrap();
        let copying = begin(&one, &["copy"], &reader, &end);
        drop(end);
        writer.write_all(b"words ").unwrap();
        std::fs::write(dir.join("near"), "from the directory").unwrap();
        assert_eq!(said(&one, &["read", "near"]), ("from the directory".to_owned(), Some(3)));
        drop((writer, reader));
        let mut text = String::new();
        output.read_to_string(&mut text).unwrap();
        assert_eq!((text.as_str(), status(&copying)), ("words 6 bytes for 0\n", Ok(Some(0))));
        let (mut output, end) = io::pipe().unwrap();
        let mut ready = [0; 5];
        let waiting = begin(&one, &["signals"], File::open("/dev/null").unwrap(), &end);
        output.read_exact(&mut ready).unwrap();
        waiting.signals().pass(2);
        assert_eq!(status(&waiting), Ok(Some(130)));
        // a signal that no terminal sends is not passed on
        let waiting = begin(&one, &["signals"], File::open("/dev/null").unwrap(), &end);
        output.read_exact(&mut ready).unwrap();
        waiting.signals().pass(9);
        waiting.signals().pass(15);
        assert_eq!(status(&waiting), Ok(Some(143)));
        let other = client();
        let waiting = begin(&other, &["signals"], File::open("/dev/null").unwrap(), &end);
        drop(end);
        output.read_exact(&mut ready).unwrap();
        drop((waiting, other));
        let mut text = String::new();
        drop(one);
        output.read_to_string(&mut text).unwrap();
        assert!(text.ends_with(" hung up"), "{text}");
        serving.end();
    });
}

#[test]
fn a_command_has_no_more_of_the_environment_than_it_shows() {
    in_own_state("a_command_has_no_more_of_the_environment_than_it_shows", |_| {
        let serving = serving();
        let (text, _) = said(&client(), &["environment"]);
        let names: Vec<&str> = text.lines().filter_map(|line| line.split('=').next()).collect();
        assert!(names.iter().all(|name| serve::is_taken(name.as_ref())), "{names:?}");
        for (name, taken) in [("TZ", true), ("LC_ALL", true), ("TERM", true), ("ZUSE_STATE", false), ("HOME", false)] {
            assert_eq!(serve::is_taken(name.as_ref()), taken, "{name}");
        }
        serving.end();
    });
}

#[test]
fn a_runner_that_fails_is_answered_and_the_server_goes_on() {
    in_own_state("a_runner_that_fails_is_answered_and_the_server_goes_on", |_| {
        let serving = serving();
        let (one, null) = (client(), File::open("/dev/null").unwrap());
        assert_eq!(status(&begin(&one, &["panic"], &null, &null)), Err(Errno::EIO));
        assert_eq!(said(&one, &["environment"]).1, Some(0));
        // the directory is one
        let none = one.begin_run(vec!["copy".into()], [null.as_fd(); 3], &null, 0o22).unwrap();
        assert_eq!(status(&none), Err(Errno::ENOTDIR));
        serving.end();
        let serving = Serving::begin(Options::default());
        assert_eq!(status(&begin(&client(), &["copy"], &null, &null)), Err(Errno::ENOTSUP));
        serving.end();
    });
}
