#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "vlmtrain/io/notice.h"

namespace vlmtrain::data {

/// Kinds that are counted by themselves; notices of further ones are counted as kOtherNotices.
inline constexpr size_t kMaxNoticeKinds = 200;
inline constexpr const char* kOtherNotices = "other notices, of more kinds than are counted";

/// Notices of a data set's samples, counted by kind. The number of kinds is bounded: where keys are names or numbers,
/// each record may have kinds of its own; those beyond the bound are counted together. Not thread-safe.
class NoticeCounts {
 public:
  struct Count {
    int64_t samples = 0;
    std::string id;       ///< of the first sample that was added
    std::string example;  ///< its io::Notice::example; may be empty

    bool operator==(const Count&) const = default;
  };

  /// Adds the notices of one sample. A kind that it has several times counts once.
  void add(std::string_view id, const std::vector<io::Notice>& notices);

  /// Takes those kinds of `other` that it does not have.
  void add_missing(const NoticeCounts& other);

  bool empty() const { return kinds_.empty(); }
  const std::map<std::string, Count>& kinds() const { return kinds_; }

  /// [{"kind", "samples", "example": {"id", "value"}}], by kind.
  nlohmann::ordered_json to_json() const;
  /// What to_json() returned. Throws nlohmann::json::exception for anything else.
  static NoticeCounts from_json(const nlohmann::ordered_json& json);

  bool operator==(const NoticeCounts&) const = default;

 private:
  std::map<std::string, Count> kinds_;
};

/// What is done about notices of a kind, after a semicolon; empty: nothing in particular.
std::string get_notice_hint(std::string_view kind);

/// A kind as a phrase: `key "source" of a record is not read`.
std::string describe_notice(std::string_view kind);

/// Logs each kind once, with its count and its example. `samples`: in the data set.
void log_notices(const NoticeCounts& notices, const std::string& dataset, int64_t samples);

/// Logs kinds as they are met, each when it is new, where the samples are not counted beforehand.
class NewNoticeLogger {
 public:
  /// Logs the kinds of `notices` that earlier calls did not have.
  void log(const NoticeCounts& notices, const std::string& dataset);
  /// Takes kinds as logged.
  void mark_logged(const NoticeCounts& notices);

 private:
  std::set<std::string> logged_;
};

}  // namespace vlmtrain::data
