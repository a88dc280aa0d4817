//! TCP connections between rank 0 and the other ranks, for heartbeats.

use std::hash::{BuildHasher, RandomState};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, ToSocketAddrs};
use std::thread;
use std::time::{Duration, Instant};

use engram_train::StudyError;
use engram_train::distributed::Collective;

/// Time in which all ranks have to connect.
const TIME_LIMIT: Duration = Duration::from_secs(30);
/// Time between two looks for a new connection.
const INTERVAL: Duration = Duration::from_millis(10);

/// A connection to another rank.
pub(crate) struct Link {
    pub(crate) rank: usize,
    /// The process and its machine, for messages.
    pub(crate) process: String,
    pub(crate) stream: TcpStream,
}

/// Connects rank 0 with all other ranks, which learn the address and a secret over MPI.
///
/// # Errors
/// If a rank does not connect in time, for example because of a firewall.
pub(crate) fn connect(world: &dyn Collective) -> Result<Vec<Link>, StudyError> {
    let host = mpi::environment::processor_name()?;
    let hosts = texts(world.gather(host.clone().into_bytes())?)?;
    let pids = texts(world.gather(std::process::id().to_string().into_bytes())?)?;
    let processes = hosts.iter().zip(&pids).map(|(host, pid)| format!("process {pid} on {host}"));
    let mut processes: Vec<String> = processes.collect();
    let is_one_machine = hosts.iter().all(|other| *other == hosts[0]);
    if world.rank() == 0 {
        let address = if is_one_machine { Ipv4Addr::LOCALHOST } else { Ipv4Addr::UNSPECIFIED };
        let listener = TcpListener::bind((address, 0));
        let listener = listener.map_err(|error| format!("cannot open a TCP port: {error}"))?;
        // A new random state has random keys.
        let secret = RandomState::new().hash_one(&host);
        let name = if is_one_machine { Ipv4Addr::LOCALHOST.to_string() } else { host };
        let invitation = format!("{name}\n{}\n{secret}", listener.local_addr()?.port());
        world.broadcast(invitation.into_bytes())?;
        return accept(&listener, secret, &mut processes);
    }
    let invitation = String::from_utf8(world.broadcast(Vec::new())?)?;
    let [host, port, secret] = invitation.lines().collect::<Vec<_>>()[..] else {
        return Err("rank 0 sent no address".into());
    };
    let failed = |error: std::io::Error| {
        format!("cannot connect to rank 0 at {host}, port {port}: {error}; is there a firewall?")
    };
    let mut stream = open(host, port.parse()?).map_err(failed)?;
    let mut greeting = secret.parse::<u64>()?.to_le_bytes().to_vec();
    greeting.extend((world.rank() as u64).to_le_bytes());
    stream.write_all(&greeting).map_err(failed)?;
    stream.set_nonblocking(true)?;
    Ok(vec![Link { rank: 0, process: processes.swap_remove(0), stream }])
}

/// Opens a connection to the first address of the host that answers.
fn open(host: &str, port: u16) -> std::io::Result<TcpStream> {
    let mut last = std::io::Error::from(ErrorKind::NotFound);
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, TIME_LIMIT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Accepts one connection of each other rank. Connections without the secret are closed.
fn accept(
    listener: &TcpListener,
    secret: u64,
    processes: &mut [String],
) -> Result<Vec<Link>, StudyError> {
    listener.set_nonblocking(true)?;
    let start = Instant::now();
    let mut links: Vec<Link> = Vec::new();
    while links.len() + 1 < processes.len() {
        if start.elapsed() > TIME_LIMIT {
            let seconds = TIME_LIMIT.as_secs();
            return Err(format!("a rank did not connect within {seconds} seconds").into());
        }
        let mut stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                thread::sleep(INTERVAL);
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        let mut greeting = [[0u8; 8]; 2];
        let has_secret = stream.read_exact(greeting.as_flattened_mut()).is_ok()
            && u64::from_le_bytes(greeting[0]) == secret;
        let rank = u64::from_le_bytes(greeting[1]) as usize;
        if has_secret && rank > 0 && rank < processes.len() {
            stream.set_nonblocking(true)?;
            links.push(Link { rank, process: std::mem::take(&mut processes[rank]), stream });
        }
    }
    Ok(links)
}

fn texts(bytes: Vec<Vec<u8>>) -> Result<Vec<String>, StudyError> {
    Ok(bytes.into_iter().map(String::from_utf8).collect::<Result<_, _>>()?)
}
