//! `[gateway]`, `[device]`, `[[listener]]`, `[admin]` and `[auth]`.

use super::forms::{any_table, bytes, choice, flag, integer, nanoseconds, rate, text, text_as};
use super::reader::{Field, Reader, Unset};
use super::tree::{Layer, Place, Table};
use crate::limits;
use crate::settings::{self, valid_gateway_id};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

const SECOND: u64 = 1_000_000_000;

/// `[gateway]` as read; `None` is wrong and reported, or left open.
pub(super) struct Gateway {
    pub(super) id: Field<String>,
    pub(super) data_dir: Field<String>,
    pub(super) disk_budget: Field<u64>,
    pub(super) ack_timeout: Field<u64>,
}

/// `[device]` as read.
pub(super) struct Device {
    pub(super) memory_budget: Field<u64>,
    pub(super) io_threads: Field<usize>,
    pub(super) segment_size: Field<u64>,
    pub(super) commit_interval: Field<u64>,
    pub(super) commit_bytes: Field<u64>,
    pub(super) state_cache: Field<u64>,
    pub(super) max_connections: Field<u32>,
    pub(super) max_inflight: Field<u16>,
    pub(super) max_packet_size: Field<u64>,
    pub(super) write_endurance: Field<u64>,
}

/// One `[[listener]]` as read.
pub(super) struct Listener {
    pub(super) bind: Field<SocketAddr>,
    pub(super) max_connections: Field<u32>,
    pub(super) max_packet_size: Field<u64>,
    pub(super) max_inflight: Field<u16>,
}

/// `[admin]` as read; a bind of `None` inside the field's value turns it off.
pub(super) struct Admin {
    pub(super) bind: Field<Option<SocketAddr>>,
    pub(super) token_file: Field<PathBuf>,
}

pub(super) fn gateway(root: &mut Reader<'_>) -> Gateway {
    let (mut reader, _) = root.table("gateway");
    let name = text_as("a name of letters, digits, \".\", \"_\" and \"-\", at most 64", |text| {
        valid_gateway_id(text).then(|| text.to_owned())
    });
    let gateway = Gateway {
        id: reader.get("id", Unset::Absent, name),
        data_dir: reader.get("data_dir", Unset::Default("\"data\""), text("a directory")),
        disk_budget: reader.get("disk_budget", Unset::Default("\"2GiB\""), bytes(0..=u64::MAX)),
        ack_timeout: reader.get("ack_timeout", Unset::Default("\"30s\""), nanoseconds(SECOND / 10..=3_600 * SECOND)),
    };
    reader.finish();
    gateway
}

pub(super) fn device(root: &mut Reader<'_>, cores: usize) -> Device {
    let (mut reader, _) = root.table("device");
    let size = |reader: &mut Reader<'_>, key, default, range| reader.get(key, Unset::Default(default), bytes(range));
    let memory_budget = size(&mut reader, "memory_budget", "\"64MiB\"", limits::MEMORY_BUDGET_MIN..=u64::MAX);
    let threads = integer(1..=u16::try_from(limits::IO_THREADS_MAX).unwrap_or(u16::MAX));
    let io_threads = reader.get("io_threads", Unset::Default("\"auto\""), |node| {
        if node.text() == Some("auto") {
            return Ok((cores / 2).clamp(1, limits::IO_THREADS_MAX));
        }
        threads(node).map(usize::from).map_err(|expected| format!("\"auto\" or {expected}"))
    });
    let segments = bytes(limits::SEGMENT_SIZE_MIN..=limits::SEGMENT_SIZE_MAX);
    let segment_size = reader.get("segment_size", Unset::Default("\"16MiB\""), |node| match segments(node) {
        Ok(size) if !size.is_multiple_of(4096) => Err("a multiple of \"4KiB\"".to_owned()),
        size => size,
    });
    let device = Device {
        memory_budget,
        io_threads,
        segment_size,
        commit_interval: reader.get("commit_interval", Unset::Default("\"0s\""), nanoseconds(0..=SECOND)),
        commit_bytes: size(&mut reader, "commit_bytes", "\"256KiB\"", 1 << 10..=64 << 20),
        state_cache: size(&mut reader, "state_cache", "\"8MiB\"", 1 << 20..=64 << 30),
        max_connections: reader.get("max_connections", Unset::Default("1000"), connections()),
        max_inflight: reader.get("max_inflight", Unset::Default("32"), integer(1..=limits::INFLIGHT_MAX)),
        max_packet_size: size(&mut reader, "max_packet_size", "\"1MiB\"", packet_sizes()),
        write_endurance: size(&mut reader, "write_endurance", "\"0B\"", 0..=u64::MAX),
    };
    reader.finish();
    device
}

fn connections() -> impl Fn(&super::tree::Node) -> Result<u32, String> {
    integer(1..=u32::try_from(limits::SESSIONS_MAX).unwrap_or(u32::MAX))
}

fn packet_sizes() -> core::ops::RangeInclusive<u64> {
    1 << 10..=u64::from(limits::PACKET_SIZE_MAX)
}

/// A numeric address and a port: names could change under a listener's feet.
fn address(text: &str) -> Option<SocketAddr> {
    text.parse().ok()
}

pub(super) fn listeners(root: &mut Reader<'_>, device: &Device) -> Vec<Listener> {
    let mut tables = root.tables("listener", limits::LISTENERS_MAX);
    if tables.is_empty() {
        tables.push(("listener[0]".to_owned(), Place::default_value(), Table::new()));
    }
    let list = tables.into_iter().map(|(path, place, table)| {
        let mut reader = Reader::new(root.findings, path, place, table);
        let listener = listener(&mut reader, device);
        reader.finish();
        listener
    });
    list.collect()
}

fn listener(reader: &mut Reader<'_>, device: &Device) -> Listener {
    let unset = match reader.place.layer {
        Layer::Default => Unset::Default("\"127.0.0.1:1883\""),
        _ => Unset::Required("an address and port, as \"127.0.0.1:1883\""),
    };
    let bind =
        reader.get("bind", unset, text_as("an address and port, as \"127.0.0.1:1883\" or \"[::]:1883\"", address));
    reader.later("transport", Some("\"tcp\""), choice(&[("tcp", ()), ("ws", ())]));
    reader.later("rate", None, rate);
    reader.later("tls", None, any_table);
    let from = |key: &'static str, value: String| Unset::From(key, value);
    let most = device.max_connections.value.unwrap_or(1);
    let packet = device.max_packet_size.value.unwrap_or(1 << 20);
    let inflight = device.max_inflight.value.unwrap_or(1);
    Listener {
        bind,
        max_connections: reader.get("max_connections", from("device.max_connections", most.to_string()), connections()),
        max_packet_size: reader.get(
            "max_packet_size",
            from("device.max_packet_size", format!("{:?}", super::units::size(packet))),
            bytes(packet_sizes()),
        ),
        max_inflight: reader.get(
            "max_inflight",
            from("device.max_inflight", inflight.to_string()),
            integer(1..=limits::INFLIGHT_MAX),
        ),
    }
}

pub(super) fn admin(root: &mut Reader<'_>) -> Admin {
    let (mut reader, _) = root.table("admin");
    let bind = text_as("an address and port, as \"127.0.0.1:8080\", or \"off\"", |text| match text {
        "off" => Some(None),
        _ => address(text).map(Some),
    });
    let bind = reader.get("bind", Unset::Default("\"127.0.0.1:8080\""), bind);
    let token_file = file(&mut reader, "token_file");
    reader.later("tls", None, any_table);
    reader.no_secret("token", "token_file");
    reader.finish();
    Admin { bind, token_file }
}

pub(super) fn auth(root: &mut Reader<'_>, open_to_others: Option<&Field<SocketAddr>>) -> settings::Auth {
    let (mut reader, _) = root.table("auth");
    let allow_anonymous = reader.get("allow_anonymous", Unset::Default("true"), flag);
    reader.later("password_file", None, text("a file"));
    reader.later("acl_file", None, text("a file"));
    reader.no_secret("password", "password_file");
    match (&allow_anonymous, open_to_others) {
        (Field { given: false, .. }, Some(bind)) => {
            let found = bind.value.map_or_else(String::new, |bind| format!(" {bind}"));
            let message = format!(
                "others than this host can reach the address{found}: set auth.allow_anonymous to say whether clients without a user \
                 name may connect, or listen on 127.0.0.1"
            );
            reader.findings.error(&bind.place, &bind.path, message);
        }
        (Field { value: Some(false), place, path, .. }, _) => {
            let message = "nobody could connect: password_file is not available in this version yet";
            reader.findings.error(place, path, message);
        }
        _ => {}
    }
    reader.finish();
    settings::Auth { allow_anonymous: allow_anonymous.or(true) }
}

/// A key that names a file. `$CREDENTIALS_DIRECTORY/name` is systemd's.
pub(super) fn file(reader: &mut Reader<'_>, key: &'static str) -> Field<PathBuf> {
    let field = reader.get(key, Unset::Absent, text("a file"));
    let value = field.value.map(|text| match text.strip_prefix("$CREDENTIALS_DIRECTORY/") {
        None => PathBuf::from(text),
        Some(name) => match &reader.findings.credentials {
            Some(directory) => directory.join(name),
            None => {
                let message = "CREDENTIALS_DIRECTORY is not set here: systemd sets it for a unit with LoadCredential=";
                reader.findings.warn(&field.place, &field.path, message);
                PathBuf::from(text)
            }
        },
    });
    Field { value, place: field.place, path: field.path, given: field.given }
}

/// Whether only this host can reach an address.
pub(super) fn loopback(address: &SocketAddr) -> bool {
    match address.ip() {
        IpAddr::V4(ip) => ip.is_loopback(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.to_ipv4_mapped().is_some_and(|ip| ip.is_loopback()),
    }
}
