#include "distributed/store.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <cerrno>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"

namespace vlmtrain::distributed {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

bool try_connect(const addrinfo& address, milliseconds timeout) {
  const int socket_fd =
      socket(address.ai_family, address.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, address.ai_protocol);
  if (socket_fd < 0) return false;
  bool is_connected = connect(socket_fd, address.ai_addr, address.ai_addrlen) == 0;
  if (!is_connected && errno == EINPROGRESS) {
    pollfd poll_request{.fd = socket_fd, .events = POLLOUT, .revents = 0};
    int error = 0;
    socklen_t size = sizeof(error);
    is_connected = poll(&poll_request, 1, static_cast<int>(timeout.count())) == 1 &&
                   getsockopt(socket_fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
  }
  close(socket_fd);
  return is_connected;
}

bool is_reachable(const LaunchInfo& launch, milliseconds timeout) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* first_address = nullptr;
  if (getaddrinfo(launch.master_address.c_str(), std::to_string(launch.master_port).c_str(), &hints, &first_address) !=
      0)
    return false;
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(first_address, freeaddrinfo);
  for (const addrinfo* address = first_address; address != nullptr; address = address->ai_next) {
    if (try_connect(*address, timeout)) return true;
  }
  return false;
}

}  // namespace

bool wait_until_listening(const LaunchInfo& launch, milliseconds timeout) {
  constexpr milliseconds kAttemptTimeout{2000}, kRetryInterval{100};
  const auto deadline = Clock::now() + timeout;
  for (;;) {
    const auto remaining = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
    if (remaining <= milliseconds(0)) return false;
    if (is_reachable(launch, std::min(remaining, kAttemptTimeout))) return true;
    std::this_thread::sleep_for(std::min(remaining, kRetryInterval));
  }
}

namespace {

std::vector<uint8_t> to_bytes(const std::string& value) {
  return {value.begin(), value.end()};
}

c10d::TCPStoreOptions make_store_options(const LaunchInfo& launch, bool is_server, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(launch.master_port);
  options.isServer = is_server;
  options.waitWorkers = false;
  options.timeout = timeout;
  return options;
}

/// Connects to rank 0's store on a thread that is abandoned after the timeout. c10d waits forever
/// for a server that accepts the connection but does not respond, and logs twenty lines about a
/// server that is not a store.
c10::intrusive_ptr<c10d::TCPStore> connect_to_store(const LaunchInfo& launch, std::chrono::milliseconds timeout) {
  constexpr std::chrono::milliseconds kStoreResponseTimeout{20'000};  // enough, because rank 0 listens already
  timeout = std::min(timeout, kStoreResponseTimeout);
  // The store's own timeout is much longer, so that this function's always ends the wait.
  std::packaged_task<c10::intrusive_ptr<c10d::TCPStore>()> connect_task(
      [host = launch.master_address, options = make_store_options(launch, /*is_server=*/false, 10 * timeout), timeout] {
        auto store = c10::make_intrusive<c10d::TCPStore>(host, options);
        store->setTimeout(timeout);
        return store;
      });
  auto store_future = connect_task.get_future();
  std::thread(std::move(connect_task)).detach();
  // wait_for() needs a symbol that older hosts lack (cmake/portable).
  if (store_future.wait_until(std::chrono::system_clock::now() + timeout) == std::future_status::ready)
    return store_future.get();
  throw usage_error(
      "rank {}: the server at {}:{} is not rank 0 of vlmtrain; if it is another program, choose another port with "
      "MASTER_PORT",
      launch.rank, launch.master_address, launch.master_port);
}

c10::intrusive_ptr<c10d::TCPStore> open_store(const LaunchInfo& launch, bool is_server,
                                              std::chrono::milliseconds timeout) {
  if (!is_server && !wait_until_listening(launch, timeout)) {
    throw usage_error(
        "rank {} cannot connect to rank 0 at {}:{} within {} s; check that it was started, or increase {}", launch.rank,
        launch.master_address, launch.master_port, std::chrono::duration<double>(timeout).count(),
        keys::distributed::kRendezvousSeconds);
  }
  try {
    if (!is_server) return connect_to_store(launch, timeout);
    return c10::make_intrusive<c10d::TCPStore>(launch.master_address, make_store_options(launch, is_server, timeout));
  } catch (const c10::Error& error) {
    const std::string reason = get_first_line(error.what());
    if (is_server) {
      throw usage_error("rank 0 cannot listen at {}:{}: {}; choose another port with MASTER_PORT",
                        launch.master_address, launch.master_port, reason);
    }
    throw usage_error("rank {} cannot connect to rank 0 at {}:{}: {}; check MASTER_ADDR, MASTER_PORT and the network",
                      launch.rank, launch.master_address, launch.master_port, reason);
  }
}

}  // namespace

struct SharedStore::Impl {
  explicit Impl(c10::intrusive_ptr<c10d::TCPStore> store) : tcp_store(std::move(store)) {}

  c10::intrusive_ptr<c10d::TCPStore> tcp_store;
};

SharedStore::SharedStore(const LaunchInfo& launch, bool is_server, std::chrono::milliseconds timeout)
    : impl_(std::make_unique<Impl>(open_store(launch, is_server, timeout))) {}

SharedStore::~SharedStore() = default;

void SharedStore::set(const std::string& key, const std::string& value) {
  impl_->tcp_store->set(key, to_bytes(value));
}

void SharedStore::set_if_absent(const std::string& key, const std::string& value) {
  impl_->tcp_store->compareSet(key, {}, to_bytes(value));
}

bool SharedStore::has_keys(const std::vector<std::string>& keys) {
  return impl_->tcp_store->check(keys);
}

std::vector<std::string> SharedStore::get(const std::vector<std::string>& keys) {
  std::vector<std::string> texts;
  texts.reserve(keys.size());
  for (const auto& bytes : impl_->tcp_store->multiGet(keys)) texts.emplace_back(bytes.begin(), bytes.end());
  return texts;
}

c10d::Store& SharedStore::get_c10d_store() {
  return *impl_->tcp_store;
}

}  // namespace vlmtrain::distributed
