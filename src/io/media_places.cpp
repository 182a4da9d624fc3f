#include "io/media_places.h"

#include <algorithm>

#include "vlmtrain/base/error.h"

namespace vlmtrain::io {
namespace {

using nlohmann::json;

std::string path_of(const json& value, size_t number, const MediaKind& kind) {
  if (value.is_array()) {
    throw data_error("{} {} is a list, say of frames: put the frames into a folder and give the folder's path",
                     kind.word, number);
  }
  if (!value.is_string() || value.get_ref<const std::string&>().empty()) {
    throw data_error("{} {} is not a path", kind.word, number);
  }
  return value.get<std::string>();
}

void add_files(const json& value, const MediaKind& kind, std::vector<std::string>& files) {
  if (!value.is_array()) {
    files.push_back(path_of(value, files.size() + 1, kind));
    return;
  }
  for (const json& item : value) {
    files.push_back(path_of(item, files.size() + 1, kind));
  }
}

std::string local_path(std::string file, size_t number, const MediaKind& kind) {
  // The system would open what stands before it.
  if (file.find('\0') != std::string::npos) throw data_error("{} {} has a NUL in its path", kind.word, number);
  constexpr std::string_view kFileScheme = "file://";
  if (file.starts_with(kFileScheme)) {
    return file.substr(kFileScheme.size());
  }
  for (const std::string_view scheme : {"http://", "https://", "data:"}) {
    if (file.starts_with(scheme)) {
      throw data_error("{} {} is a {}... address, only files are read: save the {} and give its path", kind.word,
                       number, scheme, kind.word);
    }
  }
  return file;
}

}  // namespace

std::vector<std::string> listed_media(const json& record, const MediaKind& kind) {
  std::vector<std::string> files;
  bool seen = false;
  for (const char* key : kind.keys) {
    const auto found = record.find(key);
    if (found == record.end() || found->is_null()) {
      continue;
    }
    if (seen) {
      throw data_error("has both \"{}\" and \"{}\": keep one", kind.keys[0], kind.keys[1]);
    }
    seen = true;
    add_files(*found, kind, files);
  }
  return files;
}

size_t count_marks(std::string_view text, std::string_view mark) {
  size_t marks = 0;
  for (size_t at = text.find(mark); at != std::string_view::npos; at = text.find(mark, at + mark.size())) ++marks;
  return marks;
}

void MediaPlaces::add_marks_in(std::string_view text) {
  places_.resize(places_.size() + count_marks(text, kind_->mark));
}

size_t MediaPlaces::waiting() const {
  return static_cast<size_t>(std::ranges::count_if(places_, [](const auto& place) { return !place; }));
}

std::vector<Medium> MediaPlaces::fill(const std::vector<std::string>& listed, const std::filesystem::path& root,
                                      std::string& opening) const {
  std::vector<std::optional<std::string>> places = places_;
  if (places.empty()) {
    places.resize(listed.size());
    for (size_t i = 0; i < listed.size(); ++i) {
      opening += kind_->mark;
    }
  } else if (waiting() != listed.size()) {
    throw data_error("has {} {} marks for {} {}s: each {} needs one mark", waiting(), kind_->mark, listed.size(),
                     kind_->word, kind_->word);
  }
  std::vector<Medium> files;
  files.reserve(places.size());
  auto next = listed.begin();
  for (const std::optional<std::string>& place : places) {
    files.emplace_back(root / local_path(place ? *place : *next++, files.size() + 1, *kind_));
  }
  return files;
}

}  // namespace vlmtrain::io
