#pragma once

namespace c10d {
class Store;
}

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "vlmtrain/distributed/launch.h"

namespace vlmtrain::distributed {

/// Whether anybody takes connections where rank 0 should be, asked for again and again until `timeout`. c10d's own
/// store asks for up to three times as long as it is told to.
bool wait_until_listening(const Launch& launch, std::chrono::milliseconds timeout);

/// Texts under names that all ranks see; rank 0 holds them. One thread at a time.
class SharedStore {
 public:
  /// A connection to the store of rank 0. `is_server`: rank 0's first one, which holds it as long as it lives. Throws
  /// UserError (kUsage) where the port is in use, or nobody listens there within `timeout`.
  SharedStore(const Launch& launch, bool is_server, std::chrono::milliseconds timeout);
  ~SharedStore();
  SharedStore(const SharedStore&) = delete;
  SharedStore& operator=(const SharedStore&) = delete;

  // These throw what c10d throws where rank 0 is gone.
  void set(const std::string& name, const std::string& text);
  /// Unless there is one already.
  void set_if_absent(const std::string& name, const std::string& text);
  bool has(const std::vector<std::string>& names);
  /// REQUIRES: has(names).
  std::vector<std::string> get(const std::vector<std::string>& names);

  c10d::Store& get_c10d_store();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace vlmtrain::distributed
