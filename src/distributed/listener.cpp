#include "distributed/listener.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string>
#include <thread>

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

bool is_reachable(const Launch& launch, milliseconds timeout) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* first_address = nullptr;
  if (getaddrinfo(launch.host.c_str(), std::to_string(launch.port).c_str(), &hints, &first_address) != 0) return false;
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(first_address, freeaddrinfo);
  for (const addrinfo* address = first_address; address != nullptr; address = address->ai_next) {
    if (try_connect(*address, timeout)) return true;
  }
  return false;
}

}  // namespace

bool wait_until_listening(const Launch& launch, milliseconds timeout) {
  constexpr milliseconds kAttemptTimeout{2000}, kRetryInterval{100};
  const auto deadline = Clock::now() + timeout;
  for (;;) {
    const auto remaining = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
    if (remaining <= milliseconds(0)) return false;
    if (is_reachable(launch, std::min(remaining, kAttemptTimeout))) return true;
    std::this_thread::sleep_for(std::min(remaining, kRetryInterval));
  }
}

}  // namespace vlmtrain::distributed
