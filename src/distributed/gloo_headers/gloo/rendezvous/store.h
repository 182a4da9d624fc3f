#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace gloo::rendezvous {

/// The functions that c10d's GlooStore overrides. vlmtrain does not create or call a Store.
class Store {
 public:
  virtual ~Store();
  virtual void set(const std::string& key, const std::vector<char>& value) = 0;
  virtual std::vector<char> get(const std::string& key) = 0;
  virtual void wait(const std::vector<std::string>& keys) = 0;
  virtual void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) = 0;
  virtual bool has_v2_support();
  virtual std::vector<std::vector<char>> multi_get(const std::vector<std::string>& keys);
  virtual void multi_set(const std::vector<std::string>& keys, const std::vector<std::vector<char>>& values);
  virtual void append(const std::string& key, const std::vector<char>& value);
  virtual int64_t add(const std::string& key, int64_t value);
};

}  // namespace gloo::rendezvous
