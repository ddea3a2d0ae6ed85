//! Over real sockets, with a task that plays the engine.

use super::super::client::{Client, ClientError};
use super::super::measures::Measures;
use super::super::records::tests::record;
use super::super::{AdminRequest, ControlServer, Shared, TcpServer, channel, serve};
use super::*;
use crate::engine::io::ReadFrom;
use crate::engine::status::{PartitionStatus, StreamStatus, UpstreamStatus};
use crate::settings;
use crate::types::LogPosition;
use smol::channel::Receiver;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;

/// A served admin side over an engine that answers from this.
struct House {
    dir: tempfile::TempDir,
    address: SocketAddr,
    ready: Arc<Mutex<Option<String>>>,
    asked: Arc<Mutex<Vec<AdminCommand>>>,
}

fn status(not_ready_because: Option<String>) -> Status {
    let partitions =
        (0..2).map(|partition| PartitionStatus { partition, leo: 10, ..PartitionStatus::default() }).collect();
    let mut status = Status {
        streams: vec![StreamStatus { name: "telemetry".into(), partitions }],
        upstreams: vec![UpstreamStatus { name: "dc".into(), ..UpstreamStatus::default() }],
        ..Status::default()
    };
    status.gateway.log_id = "0af1".into();
    status.gateway.ready = not_ready_because.is_none();
    status.gateway.not_ready_because = not_ready_because;
    status
}

fn play_engine(
    questions: Receiver<AdminRequest>,
    ready: Arc<Mutex<Option<String>>>,
    asked: Arc<Mutex<Vec<AdminCommand>>>,
) {
    while let Ok(AdminRequest { command, reply }) = questions.recv_blocking() {
        asked.lock().unwrap().push(command.clone());
        let answer = match command {
            AdminCommand::Status => AdminReply::Status(Box::new(status(ready.lock().unwrap().clone()))),
            AdminCommand::Records { limit, .. } => {
                let records = (0..limit as u64 + 1).map(|n| record(n + 1, n, b"{}")).collect();
                AdminReply::Records { records, next: LogPosition { seq: 99, index: 0 } }
            }
            AdminCommand::Pause { paused: true, .. } => AdminReply::Done,
            AdminCommand::Pause { paused: false, .. } => AdminReply::Refused("it is not paused".into()),
        };
        let _ = reply.try_send(answer);
    }
}

fn house(token: Option<&str>) -> House {
    let dir = tempfile::tempdir().unwrap();
    let token_file: Option<PathBuf> = token.map(|token| {
        let path = dir.path().join("token");
        std::fs::write(&path, token).unwrap();
        path
    });
    let tcp = TcpServer::bind(&settings::Admin { bind: "127.0.0.1:0".parse().unwrap(), token_file }).unwrap();
    let control = ControlServer::bind(dir.path()).unwrap();
    let (sender, questions) = channel();
    let (ready, asked) = (Arc::default(), Arc::default());
    let address = tcp.address();
    {
        let (ready, asked) = (Arc::clone(&ready), Arc::clone(&asked));
        thread::spawn(move || play_engine(questions, ready, asked));
    }
    let shared = Shared::new(sender, Arc::new(Measures::default()));
    thread::spawn(move || smol::block_on(serve(Some(tcp), control, shared)));
    House { dir, address, ready, asked }
}

impl House {
    /// Sends these bytes and reads to the end.
    fn raw(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn get(&self, target: &str) -> String {
        self.raw(&format!("GET {target} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.address))
    }

    fn client(&self) -> Client {
        Client::new(self.dir.path())
    }
}

fn status_line(answer: &str) -> &str {
    answer.lines().next().unwrap_or_default()
}

#[test]
fn health_and_readiness_tell_apart_living_and_accepting() {
    let house = house(None);
    assert!(house.get("/healthz").ends_with("ok\n"));
    assert!(house.get("/readyz").ends_with("ready\n"));
    *house.ready.lock().unwrap() = Some("the disk is full".into());
    assert!(house.get("/healthz").ends_with("ok\n"));
    let answer = house.get("/readyz");
    assert_eq!(status_line(&answer), "HTTP/1.1 503 Service Unavailable");
    assert!(answer.ends_with("{\"error\":{\"code\":\"not_ready\",\"message\":\"the disk is full\"}}\n"), "{answer}");
}

#[test]
fn the_api_answers_what_the_engine_says() {
    let house = house(None);
    let mut client = house.client();
    let status: Status = serde_json::from_slice(&client.get("/api/v1/status").unwrap()).unwrap();
    assert_eq!(status.streams[0].partitions[1].leo, 10);
    let streams: Vec<StreamStatus> = serde_json::from_slice(&client.get("/api/v1/streams").unwrap()).unwrap();
    assert_eq!(streams, status.streams);
    let upstreams: Vec<UpstreamStatus> = serde_json::from_slice(&client.get("/api/v1/upstreams").unwrap()).unwrap();
    assert_eq!(upstreams[0].name, "dc");
    assert!(client.get("/api/v1/sessions").unwrap().starts_with(b"{\"online\":0"));
    assert!(String::from_utf8(client.get("/metrics").unwrap()).unwrap().contains("forebay_log_end_offset"));
    assert!(String::from_utf8(client.get("/").unwrap()).unwrap().contains("/api/v1/status"));
}

#[test]
fn records_come_as_lines_with_the_position_to_read_on() {
    let house = house(None);
    let body = house.client().get("/api/v1/streams/telemetry/partitions/1/records?from=position:7.2&limit=2").unwrap();
    let text = String::from_utf8(body).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(
        lines[0].starts_with("{\"stream\":\"telemetry\",\"partition\":1,\"offset\":0,\"log_id\":\"0af1\""),
        "{text}"
    );
    // The engine gave one more than was asked for: it is read again, not skipped.
    assert_eq!(lines[2], "{\"next\":\"position:3.0\"}");
    let asked = house.asked.lock().unwrap().pop().unwrap();
    let AdminCommand::Records { stream, partition, from, limit } = asked else { panic!("{asked:?}") };
    assert_eq!((stream.as_str(), partition, limit), ("telemetry", Some(1), 2));
    assert_eq!(from, ReadFrom::Position(LogPosition { seq: 7, index: 2 }));
}

#[test]
fn a_whole_stream_and_escaped_times_are_read_too() {
    let house = house(None);
    house.client().get("/api/v1/streams/telemetry/records?from=2026-12-01T09%3A00%3A00+01:00").unwrap();
    let asked = house.asked.lock().unwrap().pop().unwrap();
    let AdminCommand::Records { partition, from, limit, .. } = asked else { panic!("{asked:?}") };
    assert_eq!((partition, from, limit), (None, ReadFrom::Time(1_796_112_000_000), ADMIN_RECORDS_DEFAULT));
}

#[test]
fn what_cannot_be_answered_is_a_json_error_that_says_what_was_expected() {
    let house = house(None);
    let cases = [
        ("GET", "/nothing", 404, "not_found", "/nothing"),
        ("GET", "/api/v1/streams/other/records", 404, "not_found", "telemetry"),
        ("GET", "/api/v1/streams/telemetry/partitions/2/records", 404, "not_found", "0 to 1"),
        ("GET", "/api/v1/streams/telemetry/partitions/x/records", 404, "not_found", "0 to 1"),
        ("GET", "/api/v1/streams/telemetry/records?from=yesterday", 400, "bad_request", "earliest"),
        ("GET", "/api/v1/streams/telemetry/records?limit=0", 400, "bad_request", "1 to 1000"),
        ("GET", "/api/v1/streams/telemetry/records?limit=%zz", 400, "bad_request", "escapes"),
        ("GET", "/api/v1/streams/telemetry/records?until=1", 400, "bad_request", "until"),
        ("POST", "/api/v1/upstreams/other/pause", 404, "not_found", "dc"),
        ("POST", "/api/v1/upstreams/dc/resume", 409, "refused", "not paused"),
        ("GET", "/api/v1/upstreams/dc/pause", 405, "method_not_allowed", "POST"),
        ("POST", "/api/v1/status", 405, "method_not_allowed", "GET"),
    ];
    for (method, target, status, code, word) in cases {
        let mut client = house.client();
        let answered = if method == "GET" { client.get(target) } else { client.post(target) };
        match answered {
            Err(ClientError::Refused { status: s, code: c, message }) => {
                assert_eq!((s, c.as_str()), (status, code), "{target}");
                assert!(message.contains(word), "{target}: {message}");
            }
            other => panic!("{target}: {other:?}"),
        }
    }
    assert_eq!(house.client().post("/api/v1/upstreams/dc/pause").unwrap(), b"{\"paused\":true,\"upstream\":\"dc\"}\n");
}

#[test]
fn with_a_token_only_health_checks_go_without_it() {
    let house = house(Some("0123456789abcdef"));
    *house.ready.lock().unwrap() = Some("the disk is full".into());
    assert!(house.get("/healthz").ends_with("ok\n"));
    let answer = house.get("/readyz");
    assert!(status_line(&answer).contains("503") && !answer.contains("disk"), "{answer}");
    let answer = house.get("/api/v1/status");
    assert!(status_line(&answer).contains("401") && answer.contains("www-authenticate: Bearer"), "{answer}");
    let with = "GET /api/v1/status HTTP/1.1\r\nHost: gw.example\r\nAuthorization: Bearer 0123456789abcdef\r\nConnection: close\r\n\r\n";
    assert!(status_line(&house.raw(with)).contains("200"));
    // Who may open the control socket owns the data: no token there.
    house.client().get("/api/v1/status").unwrap();
}

#[test]
fn without_a_token_a_page_of_another_name_or_origin_is_refused() {
    let house = house(None);
    let rebound = "GET /api/v1/status HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n";
    assert!(house.raw(rebound).contains("foreign_host"));
    let blind = format!(
        "POST /api/v1/upstreams/dc/pause HTTP/1.1\r\nHost: {}\r\nOrigin: http://evil.example\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        house.address
    );
    assert!(house.raw(&blind).contains("foreign_origin"));
}

#[test]
fn large_headers_and_bodies_are_refused() {
    let house = house(None);
    let header = "x".repeat(crate::limits::ADMIN_HEADER_BYTES_MAX + 1);
    let answer = house.raw(&format!("GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: {header}\r\n\r\n"));
    assert!(status_line(&answer).contains("431"), "{answer}");
    let body = "x".repeat(ADMIN_BODY_BYTES_MAX + 1);
    let answer = house.raw(&format!(
        "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    assert!(status_line(&answer).contains("413"), "{answer}");
    assert!(house.get("/healthz").ends_with("ok\n"));
}

#[test]
fn a_head_request_has_no_body() {
    let house = house(None);
    let answer = house.raw("HEAD /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert!(status_line(&answer).contains("200") && answer.ends_with("\r\n\r\n"), "{answer}");
}

#[test]
fn the_control_socket_is_for_its_owner_and_replaces_a_left_over_one() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    drop(std::os::unix::net::UnixListener::bind(dir.path().join("control.sock")).unwrap());
    assert!(matches!(Client::new(dir.path()).get("/healthz"), Err(ClientError::NotRunning)));
    let server = ControlServer::bind(dir.path()).unwrap();
    let mode = std::fs::metadata(dir.path().join("control.sock")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    drop(server);
    assert!(!dir.path().join("control.sock").exists());
}

#[test]
fn a_broker_that_stops_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let control = ControlServer::bind(dir.path()).unwrap();
    let (sender, questions) = channel();
    drop(questions);
    let shared = Shared::new(sender, Arc::new(Measures::default()));
    thread::spawn(move || smol::block_on(serve(None, control, shared)));
    let answered = Client::new(dir.path()).get("/api/v1/status");
    assert!(matches!(&answered, Err(ClientError::Refused { code, .. }) if code == "stopping"), "{answered:?}");
}
