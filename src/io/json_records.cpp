#include "io/json_records.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "io/dataset_record.h"
#include "io/json_index.h"
#include "io/json_places.h"
#include "io/mapped_file.h"
#include "io/record_json.h"
#include "io/stored_file.h"
#include "vlmtrain/base/content_hash.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/printable.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::io {
namespace {

class JsonRecords final : public Records {
 public:
  JsonRecords(StoredFile file, JsonPlaces places, const RecordSettings& settings)
      : file_(std::move(file)),
        places_(std::move(places)),
        reader_(settings, file_.path().parent_path()),
        stem_(file_.path().stem().string()) {}

  int64_t size() const override { return std::ssize(places_.begins); }
  uint64_t stamp() const override { return ContentHash().add(file_.stamp()).add(reader_.stamp()).value(); }

  Record at(int64_t index) const override {
    Record record = read(text_of(index), fmt::format("{}:{}", stem_, index));
    record.place = fmt::format("line {}", places_.lines[static_cast<size_t>(index)]);
    return record;
  }

  /// Warns of what of `columns` no record bears of those looked at, which are all or some from everywhere: a name that
  /// is mistyped would leave all pictures out.
  void check_columns(const std::map<std::string, std::string>& columns) const {
    constexpr int64_t kLookedAt = 1000;
    const int64_t count = std::min(size(), kLookedAt);
    std::map<std::string, std::string> missing = count > 0 ? columns : std::map<std::string, std::string>();
    for (int64_t i = 0; i < count && !missing.empty(); ++i) {
      const auto value = parse_record_json(text_of(i * size() / count));
      if (!value || !value->is_object()) continue;
      std::erase_if(missing, [&](const auto& column) { return value->contains(column.second); });
    }
    for (const auto& [name, theirs] : missing) {
      spdlog::warn(
          "{}: data.columns: {} has a field \"{}\", which is to be its {}; is the name right?", file_.path().string(),
          count == size() ? "no record" : fmt::format("none of {} records looked at", count), excerpt(theirs), name);
    }
  }

 private:
  std::string text_of(int64_t index) const {
    const auto place = static_cast<size_t>(index);
    const uint64_t begin = places_.begins.at(place);
    const uint64_t end = place + 1 < places_.begins.size() ? places_.begins[place + 1] : places_.end;
    const std::string bytes = file_.read(begin, end - begin);
    return std::string(places_.text_of(place, bytes));
  }

  Record read(std::string_view text, const std::string& fallback_id) const {
    if (auto value = parse_record_json(text)) return reader_.read(*std::move(value), fallback_id);
    const JsonFault fault = find_json_fault(without_python_numbers(text));
    Record record;
    record.id = printable(fallback_id);
    record.problem = places_.are_lines
                         ? fmt::format("the line is not valid JSON at column {}: {}", fault.column, fault.reason)
                         : fmt::format("the record is not valid JSON at its line {}, column {}: {}", fault.line,
                                       fault.column, fault.reason);
    return record;
  }

  StoredFile file_;
  JsonPlaces places_;
  RecordReader reader_;
  std::string stem_;
};

/// Of a file that takes its time to be gone through, they are known from the last start.
JsonPlaces places_in(const StoredFile& file) {
  constexpr uint64_t kLarge = uint64_t{256} << 20;
  const auto index = file.size() < kLarge ? std::filesystem::path() : json_index_of(file.path());
  if (auto known = read_json_index(index, file.stamp(), file.size())) return *std::move(known);
  JsonPlaces places = find_json_records(MappedFile(file.path()), file.path().string());
  file.check();
  write_json_index(index, file.stamp(), places);
  return places;
}

}  // namespace

std::shared_ptr<const Records> open_json(const std::filesystem::path& file, const RecordSettings& settings) {
  StoredFile stored(file);
  JsonPlaces places = places_in(stored);
  auto records = std::make_shared<JsonRecords>(std::move(stored), std::move(places), settings);
  records->check_columns(settings.columns);
  return records;
}

}  // namespace vlmtrain::io
