#include "io/json_records.h"

#include <nlohmann/json.hpp>

#include <utility>

#include "io/dataset_record.h"
#include "io/json_index.h"
#include "io/json_places.h"
#include "io/mapped_file.h"
#include "io/stored_file.h"
#include "vlmtrain/base/content_hash.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/printable.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/json_text.h"

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
    const auto place = static_cast<size_t>(index);
    const uint64_t begin = places_.begins.at(place);
    const uint64_t end = place + 1 < places_.begins.size() ? places_.begins[place + 1] : places_.end;
    const std::string bytes = file_.read(begin, end - begin);
    Record record = read(places_.text_of(place, bytes), fmt::format("{}:{}", stem_, index));
    record.place = fmt::format("line {}", places_.lines[place]);
    return record;
  }

 private:
  Record read(std::string_view text, const std::string& fallback_id) const {
    if (auto value = json_of(text)) return reader_.read(*std::move(value), fallback_id);
    const JsonFault fault = find_json_fault(text);
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
  return std::make_shared<JsonRecords>(std::move(stored), std::move(places), settings);
}

}  // namespace vlmtrain::io
