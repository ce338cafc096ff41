#include "framework/kernels/library.h"

#include <dirent.h>
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <mutex>

#include "framework/core/cuda.h"
#include "framework/core/log.h"

namespace penstock::kernels {
namespace {

namespace fs = std::filesystem;

std::string& configured_path() {
  static std::string path;
  return path;
}

std::string own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&own_folder), &info) == 0 || info.dli_fname == nullptr) {
    return ".";
  }
  std::error_code ignored;
  const fs::path file = fs::canonical(info.dli_fname, ignored);
  return (file.empty() ? fs::path(info.dli_fname) : file).parent_path().string();
}

void add_python_folders(std::vector<std::string>& out, const fs::path& prefix) {
  std::error_code error;
  for (const auto& python : fs::directory_iterator(prefix / "lib", error)) {
    const fs::path nvidia = python.path() / "site-packages" / "nvidia";
    for (const auto& part : fs::directory_iterator(nvidia, error)) {
      if (fs::is_directory(part.path() / "lib", error)) {
        out.push_back((part.path() / "lib").string());
      }
    }
  }
}

// Where NVIDIA's libraries may lie, first choice first; "" is the loader's own path.
std::vector<std::string> search_folders() {
  std::vector<std::string> out;
  if (!configured_path().empty()) {
    out.push_back(configured_path());
  }
  for (const char* variable : {"PENSTOCK_CUDA_LIBRARIES", "CUDA_HOME", "CUDA_PATH"}) {
    if (const char* value = std::getenv(variable); value != nullptr && *value != '\0') {
      out.emplace_back(value);
      if (std::string(variable) != "PENSTOCK_CUDA_LIBRARIES") {
        out.back() += "/lib64";
      }
    }
  }
  out.emplace_back();
  if (const char* venv = std::getenv("VIRTUAL_ENV"); venv != nullptr) {
    add_python_folders(out, venv);
  }
  // The python3 on PATH: its prefix is two folders above the (resolved and unresolved) binary.
  const char* path = std::getenv("PATH");
  std::string folders = path != nullptr ? path : "";
  for (std::size_t begin = 0; begin < folders.size();) {
    const std::size_t end = std::min(folders.find(':', begin), folders.size());
    const fs::path python = fs::path(folders.substr(begin, end - begin)) / "python3";
    if (access(python.c_str(), X_OK) == 0) {
      add_python_folders(out, python.parent_path().parent_path());
      std::error_code error;
      const fs::path real = fs::canonical(python, error);
      if (!error) {
        add_python_folders(out, real.parent_path().parent_path());
      }
      break;
    }
    begin = end + 1;
  }
  out.emplace_back("/usr/local/cuda/lib64");
  return out;
}

// Opens one library by name from the first folder that has it. The plugin's own dependencies then
// resolve by name to what is already loaded.
bool preload(const std::string& name, const std::vector<std::string>& folders, std::string& where) {
  for (const std::string& folder : folders) {
    const std::string file = folder.empty() ? name : folder + "/" + name;
    if (!folder.empty() && access(file.c_str(), R_OK) != 0) {
      continue;
    }
    if (dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr) {
      where = file;
      return true;
    }
  }
  return false;
}

std::string joined(const std::vector<std::string>& folders) {
  std::string out;
  for (const std::string& f : folders) {
    out += (out.empty() ? "" : ", ") + (f.empty() ? std::string("the loader's path") : f);
  }
  return out;
}

std::string g_opened;  // "libcublasLt.so.13 from ..., libcudnn.so.9 from ..."

CudaLibrary open_cuda_library() {
  cuda::require();
  const std::vector<std::string> folders = search_folders();
  const std::string lt = format("libcublasLt.so.{}", cuda::info().runtime_version / 1000);
  g_opened.clear();
  for (const std::string& name : {lt, std::string("libcudnn.so.9")}) {
    std::string where;
    if (!preload(name, folders, where)) {
      throw DeviceError(format("cuda: {} was not found; looked in {}. Install it, or name its folder "
                               "in PENSTOCK_CUDA_LIBRARIES",
                               name, joined(folders)));
    }
    g_opened += (g_opened.empty() ? "" : ", ") + where;
  }
  std::string why;
  void* plugin = open_plugin("libpenstock_cuda.so", why);
  if (plugin == nullptr) {
    throw DeviceError(format("cuda: libpenstock_cuda.so was not opened: {}", why));
  }
  using Entry = const PenstockCudaPlugin* (*)();
  const auto entry = reinterpret_cast<Entry>(symbol(plugin, "penstock_cuda_plugin"));
  CudaLibrary library;
  library.table = entry != nullptr ? entry() : nullptr;
  if (library.table == nullptr || library.table->version != PENSTOCK_CUDA_PLUGIN_VERSION) {
    throw DeviceError("cuda: libpenstock_cuda.so belongs to another version of Penstock");
  }
  PenstockError error{};
  if (library.table->create(&library.context, nullptr, &error) != 0) {
    throw DeviceError(format("cuda: {}", static_cast<const char*>(error.text)));
  }
  log::debug("cuda: {} (cublasLt {}, cuDNN {})", g_opened, library.table->cublaslt_version(),
             library.table->cudnn_version());
  return library;
}

}  // namespace

std::string plugin_path(const std::string& file) { return own_folder() + "/" + file; }

void* open_plugin(const std::string& file, std::string& why) {
  const std::string path = plugin_path(file);
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    why = dlerror();
  }
  return library;
}

void* symbol(void* library, const char* name) { return dlsym(library, name); }

const CudaLibrary& cuda_library() {
  static const CudaLibrary library = open_cuda_library();
  return library;
}

std::string cuda_library_status() {
  try {
    const CudaLibrary& library = cuda_library();
    return format("{}; cublasLt {}, cuDNN {}", g_opened, library.table->cublaslt_version(),
                  library.table->cudnn_version());
  } catch (const Error& e) {
    return e.what();
  }
}

std::string cuda_library_versions() {
  const CudaLibrary& library = cuda_library();
  return format("cublasLt {} cuDNN {}", library.table->cublaslt_version(),
                library.table->cudnn_version());
}

void set_cuda_library_path(const std::string& folder) { configured_path() = folder; }

}  // namespace penstock::kernels
