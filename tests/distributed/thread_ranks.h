#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "vlmtrain/distributed/ranks.h"

namespace vlmtrain::distributed {

/// Returns a port on which nobody listens now.
inline int64_t free_port() {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  EXPECT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), length), 0);
  EXPECT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length), 0);
  close(listener);
  return ntohs(address.sin_port);
}

inline LaunchInfo make_launch(int64_t rank, int64_t world_size, int64_t port) {
  return {.rank = rank,
          .world_size = world_size,
          .local_rank = rank,
          .master_address = "127.0.0.1",
          .master_port = port,
          .launcher = "a test"};
}

/// Calls `act` for each rank, each on a thread of its own.
inline void run_ranks(int64_t world_size, const std::function<void(const LaunchInfo& launch)>& act) {
  const int64_t port = free_port();
  std::vector<std::jthread> threads;
  for (int64_t rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&act, launch = make_launch(rank, world_size, port)] { act(launch); });
  }
}

}  // namespace vlmtrain::distributed
