//! From a request to its answer.

use super::auth::{Access, Denied};
use super::{NoAnswer, Shared, from, metrics, process, records};
use crate::engine::io::{AdminCommand, AdminReply};
use crate::engine::status::Status;
use crate::limits::{ADMIN_BODY_BYTES_MAX, ADMIN_HEADER_SECONDS, ADMIN_RECORDS_DEFAULT, ADMIN_RECORDS_MAX};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, WWW_AUTHENTICATE};
use hyper::{Method, Request, Response, StatusCode};
use serde::Serialize;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What hyper sends.
pub type Answer = Response<Full<Bytes>>;

const PLAIN: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
const LINES: &str = "application/x-ndjson";

const INDEX: &str = "forebay\n\n\
    GET  /healthz                                                    the process lives\n\
    GET  /readyz                                                     publishes at acks=1 are accepted\n\
    GET  /metrics                                                    for Prometheus\n\
    GET  /api/v1/status                                              everything at a glance\n\
    GET  /api/v1/streams                                             streams and their partitions\n\
    GET  /api/v1/streams/{name}/records?from=&limit=                 records of a stream, in log order\n\
    GET  /api/v1/streams/{name}/partitions/{n}/records?from=&limit=  records of one partition\n\
    GET  /api/v1/upstreams                                           upstreams and their lag\n\
    POST /api/v1/upstreams/{name}/pause | resume                     stop or go on forwarding\n\
    GET  /api/v1/sessions                                            sessions and connections\n";

/// Where a path leads.
#[derive(Debug, PartialEq, Eq)]
enum Route<'a> {
    Index,
    Health,
    Ready,
    Metrics,
    Status,
    Streams,
    Records { stream: &'a str, partition: Option<&'a str> },
    Upstreams,
    Pause { upstream: &'a str, paused: bool },
    Sessions,
}

impl<'a> Route<'a> {
    fn of(path: &'a str) -> Option<Self> {
        let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        Some(match parts.as_slice() {
            [""] => Self::Index,
            ["healthz"] => Self::Health,
            ["readyz"] => Self::Ready,
            ["metrics"] => Self::Metrics,
            ["api", "v1", rest @ ..] => match rest {
                ["status"] => Self::Status,
                ["streams"] => Self::Streams,
                ["streams", stream, "records"] => Self::Records { stream, partition: None },
                ["streams", stream, "partitions", partition, "records"] => {
                    Self::Records { stream, partition: Some(partition) }
                }
                ["upstreams"] => Self::Upstreams,
                ["upstreams", upstream, "pause"] => Self::Pause { upstream, paused: true },
                ["upstreams", upstream, "resume"] => Self::Pause { upstream, paused: false },
                ["sessions"] => Self::Sessions,
                _ => return None,
            },
            _ => return None,
        })
    }

    fn changes_something(&self) -> bool {
        matches!(self, Self::Pause { .. })
    }

    fn method(&self) -> &'static str {
        if self.changes_something() { "POST" } else { "GET, HEAD" }
    }
}

/// Something that cannot be answered as asked.
struct Problem {
    status: StatusCode,
    code: &'static str,
    message: String,
}

impl Problem {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into() }
    }

    fn bad(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", message)
    }

    fn missing(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
    }

    fn answer(self) -> Answer {
        let body = serde_json::json!({ "error": { "code": self.code, "message": self.message } });
        answer(self.status, JSON, format!("{body}\n"))
    }
}

impl From<NoAnswer> for Problem {
    fn from(no_answer: NoAnswer) -> Self {
        match no_answer {
            NoAnswer::Stopping => Self::new(StatusCode::SERVICE_UNAVAILABLE, "stopping", "the broker is stopping"),
            NoAnswer::TimedOut => Self::new(
                StatusCode::GATEWAY_TIMEOUT,
                "timed_out",
                "the engine did not answer in time; it is overloaded or stuck, its log says more",
            ),
        }
    }
}

impl From<Denied> for Problem {
    fn from(denied: Denied) -> Self {
        let (status, code, message) = match denied {
            Denied::Token => (
                StatusCode::UNAUTHORIZED,
                "unauthorized",
                "expected the header `Authorization: Bearer TOKEN` with the token of admin.token_file",
            ),
            Denied::Host => (
                StatusCode::FORBIDDEN,
                "foreign_host",
                "without a token only requests to an address or localhost are answered; set admin.token_file to serve other names",
            ),
            Denied::Origin => {
                (StatusCode::FORBIDDEN, "foreign_origin", "a page of another origin may not change anything here")
            }
        };
        Self::new(status, code, message)
    }
}

fn answer(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    let headers = [
        (CONTENT_TYPE, content_type),
        (CACHE_CONTROL, "no-store"),
        (HeaderName::from_static("x-content-type-options"), "nosniff"),
        (HeaderName::from_static("content-security-policy"), "default-src 'none'; frame-ancestors 'none'"),
    ];
    for (name, value) in headers {
        answer.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    answer
}

fn json(value: &impl Serialize) -> Result<Answer, Problem> {
    let mut body = serde_json::to_vec(value).map_err(|error| Problem::internal(error.to_string()))?;
    body.push(b'\n');
    Ok(answer(StatusCode::OK, JSON, body))
}

/// Answers one request; whatever goes wrong is an answer too.
pub async fn answer_to(request: Request<Incoming>, access: &Access, shared: &Shared) -> Answer {
    let (parts, body) = request.into_parts();
    let Some(route) = Route::of(parts.uri.path()) else {
        return Problem::missing(format!("there is no {}; / names what there is", parts.uri.path())).answer();
    };
    let right_method = if route.changes_something() {
        parts.method == Method::POST
    } else {
        parts.method == Method::GET || parts.method == Method::HEAD
    };
    if !right_method {
        let message = format!("expected {}, found {}", route.method(), parts.method);
        let mut answer = Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message).answer();
        answer.headers_mut().insert(ALLOW, HeaderValue::from_static(route.method()));
        return answer;
    }
    if let Err(problem) = drain(body).await {
        return problem.answer();
    }
    let allowed = access.check(&parts.headers, route.changes_something());
    // Health checks come from probes that carry no token. They learn yes or no, and the reason only if they may see the rest.
    let result = match (route, allowed) {
        (Route::Health, _) => Ok(answer(StatusCode::OK, PLAIN, "ok\n")),
        (Route::Ready, allowed) => ready(shared, allowed.is_ok()).await,
        (route, Ok(())) => allowed_answer(route, parts.uri.query().unwrap_or_default(), shared).await,
        (_, Err(denied)) => Err(denied.into()),
    };
    result.unwrap_or_else(|problem| {
        let unauthorized = problem.status == StatusCode::UNAUTHORIZED;
        let mut answer = problem.answer();
        if unauthorized {
            answer.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        answer
    })
}

/// No request needs a body; a small one is read and forgotten so that the connection stays usable.
async fn drain(body: Incoming) -> Result<(), Problem> {
    if body.is_end_stream() {
        return Ok(());
    }
    let read = async {
        let too_large = |_| {
            let message = format!("no request here has a body of more than {ADMIN_BODY_BYTES_MAX} bytes");
            Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
        };
        let body = Limited::new(body, ADMIN_BODY_BYTES_MAX);
        body.collect().await.map(|_| ()).map_err(too_large)
    };
    let timeout = async {
        smol::Timer::after(Duration::from_secs(ADMIN_HEADER_SECONDS)).await;
        Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "timed_out", "the body did not arrive in time"))
    };
    smol::future::or(read, timeout).await
}

async fn status(shared: &Shared) -> Result<Box<Status>, Problem> {
    match shared.ask(AdminCommand::Status).await? {
        AdminReply::Status(status) => Ok(status),
        AdminReply::Refused(reason) => Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "refused", reason)),
        AdminReply::Records { .. } | AdminReply::Done => Err(Problem::internal("the engine answered another question")),
    }
}

async fn ready(shared: &Shared, with_reason: bool) -> Result<Answer, Problem> {
    let status = status(shared).await?;
    if status.gateway.ready {
        return Ok(answer(StatusCode::OK, PLAIN, "ready\n"));
    }
    let reason = status.gateway.not_ready_because.filter(|_| with_reason);
    let message = reason.unwrap_or_else(|| "publishes at acks=1 are not accepted now".into());
    Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "not_ready", message))
}

async fn allowed_answer(route: Route<'_>, query: &str, shared: &Shared) -> Result<Answer, Problem> {
    match route {
        Route::Index => Ok(answer(StatusCode::OK, PLAIN, INDEX)),
        Route::Health => Ok(answer(StatusCode::OK, PLAIN, "ok\n")),
        Route::Ready => ready(shared, true).await,
        Route::Metrics => {
            let text = metrics::render(*status(shared).await?, shared.measures(), process::Process::read());
            let text = text.map_err(|error| Problem::internal(error.to_string()))?;
            Ok(answer(StatusCode::OK, metrics::CONTENT_TYPE, text))
        }
        Route::Status => json(&status(shared).await?),
        Route::Streams => json(&status(shared).await?.streams),
        Route::Upstreams => json(&status(shared).await?.upstreams),
        Route::Sessions => json(&status(shared).await?.sessions),
        Route::Pause { upstream, paused } => pause(shared, upstream, paused).await,
        Route::Records { stream, partition } => stored(shared, stream, partition, query).await,
    }
}

async fn pause(shared: &Shared, upstream: &str, paused: bool) -> Result<Answer, Problem> {
    let status = status(shared).await?;
    let mut names = status.upstreams.iter().map(|upstream| upstream.name.as_str());
    if !names.clone().any(|name| name == upstream) {
        return Err(Problem::missing(not_there("upstream", upstream, &mut names)));
    }
    match shared.ask(AdminCommand::Pause { upstream: upstream.to_owned(), paused }).await? {
        AdminReply::Refused(reason) => Err(Problem::new(StatusCode::CONFLICT, "refused", reason)),
        _ => json(&serde_json::json!({ "upstream": upstream, "paused": paused })),
    }
}

async fn stored(shared: &Shared, stream: &str, partition: Option<&str>, query: &str) -> Result<Answer, Problem> {
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64);
    let mut from = crate::engine::io::ReadFrom::Earliest;
    let mut limit = ADMIN_RECORDS_DEFAULT;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value =
            percent_decoded(value).ok_or_else(|| Problem::bad(format!("{name}: expected %XX escapes of UTF-8")))?;
        match name {
            "from" => from = from::parse(&value, now_ms).map_err(|error| Problem::bad(format!("from: {error}")))?,
            "limit" => {
                limit =
                    value.parse().ok().filter(|limit| (1..=ADMIN_RECORDS_MAX).contains(limit)).ok_or_else(|| {
                        Problem::bad(format!("limit: expected a number from 1 to {ADMIN_RECORDS_MAX}, found {value:?}"))
                    })?;
            }
            _ => return Err(Problem::bad(format!("expected from= and limit=, found {name:?}"))),
        }
    }
    let status = status(shared).await?;
    let Some(known) = status.streams.iter().find(|known| known.name == stream) else {
        let mut names = status.streams.iter().map(|stream| stream.name.as_str());
        return Err(Problem::missing(not_there("stream", stream, &mut names)));
    };
    let partition = match partition {
        None => None,
        Some(text) => {
            let number =
                text.parse().ok().filter(|n| known.partitions.iter().any(|partition| partition.partition == *n));
            let last = known.partitions.len().saturating_sub(1);
            Some(number.ok_or_else(|| {
                Problem::missing(format!("stream {stream:?} has partitions 0 to {last}, not {text:?}"))
            })?)
        }
    };
    let command = AdminCommand::Records { stream: stream.to_owned(), partition, from, limit };
    match shared.ask(command).await? {
        AdminReply::Records { records, next } => {
            let log_id = &status.gateway.log_id;
            let body = records::page(&records, next, limit, stream, log_id);
            Ok(answer(StatusCode::OK, LINES, body.map_err(|error| Problem::internal(error.to_string()))?))
        }
        AdminReply::Refused(reason) => Err(Problem::new(StatusCode::CONFLICT, "refused", reason)),
        AdminReply::Status(_) | AdminReply::Done => Err(Problem::internal("the engine answered another question")),
    }
}

fn not_there(what: &str, name: &str, names: &mut dyn Iterator<Item = &str>) -> String {
    let names: Vec<&str> = names.collect();
    match names.as_slice() {
        [] => format!("there is no {what} {name:?}, nor any other"),
        names => format!("there is no {what} {name:?}; there is {}", names.join(", ")),
    }
}

/// Undoes %XX. `+` stays what it is: it stands in times with an offset, and no value here holds a space.
fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let high = char::from(bytes.next()?).to_digit(16)?;
        let low = char::from(bytes.next()?).to_digit(16)?;
        decoded.push((high << 4 | low) as u8);
    }
    String::from_utf8(decoded).ok()
}

#[cfg(test)]
mod tests;
