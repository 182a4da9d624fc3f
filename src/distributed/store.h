#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "vlmtrain/distributed/launch.h"

namespace c10d {
class Store;
}

namespace vlmtrain::distributed {

/// Texts under names that all ranks see; rank 0 holds them. One thread at a time.
class SharedTexts {
 public:
  /// A connection to the store of rank 0. `is_server`: rank 0's first one, which holds it as long as it lives. Throws
  /// UserError (kUsage) where the port is in use, or nobody listens there within `timeout`.
  SharedTexts(const Launch& launch, bool is_server, std::chrono::milliseconds timeout);
  ~SharedTexts();
  SharedTexts(const SharedTexts&) = delete;
  SharedTexts& operator=(const SharedTexts&) = delete;

  // These throw what c10d throws where rank 0 is gone.
  void set(const std::string& name, const std::string& text);
  /// Unless there is one already.
  void set_first(const std::string& name, const std::string& text);
  bool has(const std::vector<std::string>& names);
  /// REQUIRES: has(names).
  std::vector<std::string> get(const std::vector<std::string>& names);

  c10d::Store& store();

 private:
  struct Store;
  std::unique_ptr<Store> store_;
};

}  // namespace vlmtrain::distributed
