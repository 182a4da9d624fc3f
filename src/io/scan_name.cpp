#include "vlmtrain/io/scan_name.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "vlmtrain/base/file_kind.h"

namespace vlmtrain::io {

std::string scan_name(const Record& record, size_t place) {
  const auto begin = record.images.begin(), at = begin + static_cast<std::ptrdiff_t>(place);
  const auto number = static_cast<size_t>(std::count_if(begin, at, [](const auto& one) { return one.is_volume; }));
  const auto volumes = static_cast<size_t>(std::ranges::count(record.images, true, &Medium::is_volume));
  // Of as many subjects as volumes each has its own; else all of them are whom the record is about.
  std::string name = record.images[place].modality;
  const std::string subject =
      record.subjects.size() == volumes ? record.subjects[number] : fmt::format("{}", fmt::join(record.subjects, ", "));
  if (!name.empty() && !subject.empty()) name += ", ";
  return name += subject;
}

std::vector<Medium*> volumes_in(Record& record) {
  std::vector<Medium*> volumes;
  for (Medium& medium : record.images) {
    medium.is_volume |= is_named_like_a_volume(medium.path);
    if (medium.is_volume) volumes.push_back(&medium);
  }
  return volumes;
}

bool give_modalities(std::span<Medium* const> volumes, std::span<const std::string> modalities) {
  if (modalities.size() != 1 && modalities.size() != volumes.size()) return false;
  for (size_t i = 0; i < volumes.size(); ++i) volumes[i]->modality = modalities[modalities.size() == 1 ? 0 : i];
  return true;
}

}  // namespace vlmtrain::io
