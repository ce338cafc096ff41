#include <omp.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <unordered_map>

#include "framework/kernels/onednn_plugin.h"
#include "framework/kernels/onednn_plugin/descriptors.h"
#include "framework/kernels/onednn_plugin/problems.h"

namespace penstock_onednn {
namespace {

void set_error(PenstockOnednnError* error, const char* text) {
  std::snprintf(error->text, sizeof(error->text), "%s", text);
}

// Everything that leaves the plugin passes here: no exception does.
template <class F>
int guarded(PenstockOnednnError* error, F&& body) {
  try {
    body();
    return 0;
  } catch (const Unsupported& e) {
    set_error(error, e.why.c_str());
    return kPenstockOnednnUnsupported;
  } catch (const dnnl::error& e) {
    set_error(error, e.what());
    return e.status == dnnl_unimplemented || e.status == dnnl_invalid_arguments
               ? kPenstockOnednnUnsupported
               : kPenstockOnednnFailed;
  } catch (const std::bad_alloc&) {
    set_error(error, "out of memory");
    return kPenstockOnednnFailed;
  } catch (...) {
    set_error(error, "an unknown exception");
    return kPenstockOnednnFailed;
  }
}

void release(Problem* p) {
  if (p->users.fetch_sub(1) == 1) {
    delete p;
  }
}

// Problems by the bytes that describe them. Creating one costs 0.1 to 1.5 ms the first time, finding
// it 0.1 us. The least recently used one goes when the cache is full.
class Cache {
 public:
  static constexpr std::size_t kCapacity = 1024;

  Problem* find(std::string_view key) {
    const std::lock_guard lock(mutex_);
    const auto it = problems_.find(key);
    if (it == problems_.end()) {
      return nullptr;
    }
    it->second->last_use = ++clock_;
    ++it->second->users;
    return it->second;
  }

  // The problem that is kept: this one, or one that another thread made meanwhile.
  Problem* keep(std::string_view key, std::unique_ptr<Problem> made) {
    const std::lock_guard lock(mutex_);
    if (problems_.size() >= kCapacity) {
      auto oldest = problems_.begin();
      for (auto it = problems_.begin(); it != problems_.end(); ++it) {
        oldest = it->second->last_use < oldest->second->last_use ? it : oldest;
      }
      Problem* p = oldest->second;
      problems_.erase(oldest);
      release(p);
    }
    const auto [it, inserted] = problems_.try_emplace(std::string(key), made.get());
    if (inserted) {
      it->second->users = 1;
      (void)made.release();  // NOLINT(bugprone-unused-return-value): the map has it
    }
    it->second->last_use = ++clock_;
    ++it->second->users;
    return it->second;
  }

  std::size_t size() {
    const std::lock_guard lock(mutex_);
    return problems_.size();
  }

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view s) const { return std::hash<std::string_view>()(s); }
  };
  std::mutex mutex_;
  std::uint64_t clock_ = 0;
  std::unordered_map<std::string, Problem*, Hash, std::equal_to<>> problems_;
};

// Leaked: calls may come from static destructors of the program.
Cache& cache() {
  static auto* c = new Cache;
  return *c;
}

// Primitives divide their work at creation, for the calling thread's team size: it must be the same
// when they run.
void use_threads(int count) {
  if (omp_get_max_threads() != count) {
    omp_set_num_threads(count);
  }
}

template <class Description>
int open(const Description* d, void** problem, PenstockOnednnInfo* info,
         PenstockOnednnError* error) {
  return guarded(error, [&] {
    const std::string_view key(reinterpret_cast<const char*>(d), sizeof(*d));
    Problem* p = cache().find(key);
    if (p == nullptr) {
      auto made = std::make_unique<Problem>();
      made->threads = d->threads;
      use_threads(d->threads);
      build(*made, *d);
      p = cache().keep(key, std::move(made));
    }
    info->workspace = p->workspace;
    std::snprintf(info->name, sizeof(info->name), "%s", p->name.c_str());
    *problem = p;
  });
}

int open_matmul(const PenstockOnednnMatmul* matmul, void** problem, PenstockOnednnInfo* info,
                PenstockOnednnError* error) {
  return open(matmul, problem, info, error);
}

int open_conv(const PenstockOnednnConv* conv, void** problem, PenstockOnednnInfo* info,
              PenstockOnednnError* error) {
  return open(conv, problem, info, error);
}

int run(void* problem, const PenstockOnednnCall* call, PenstockOnednnError* error) {
  return guarded(error, [&] {
    auto& p = *static_cast<Problem*>(problem);
    use_threads(p.threads);
    p.run(*call);
  });
}

void close(void* problem) { release(static_cast<Problem*>(problem)); }

const char* library() {
  static const std::string text = [] {
    const dnnl_version_t* v = dnnl_version();
    return "oneDNN " + std::to_string(v->major) + "." + std::to_string(v->minor) + "." +
           std::to_string(v->patch);
  }();
  return text.c_str();
}

const char* isa() { return name_of(dnnl::get_effective_cpu_isa()); }

int usable(int32_t dtype) {
  const auto bits = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  switch (dtype) {
    case 1: return 1;
    case 2: return (bits & 0x1efU) == 0x1efU ? 1 : 0;  // AVX512-FP16, known to 3.x only
    case 3: return (bits & 0xe7U) == 0xe7U ? 1 : 0;    // AVX512-BF16
    default: return 0;
  }
}

#if DNNL_CPU_THREADING_RUNTIME == DNNL_RUNTIME_OMP
void team(int count, void (*body)(void*, int), void* context) {
#pragma omp parallel num_threads(count)
  {
    // The team may be smaller than asked for (a thread limit): every index still has its turn.
    const int size = omp_get_num_threads();
    for (int i = omp_get_thread_num(); i < count; i += size) {
      body(context, i);
    }
  }
}
constexpr auto kTeam = team;
#else
constexpr decltype(PenstockOnednnPlugin::parallel) kTeam = nullptr;
#endif

const PenstockOnednnPlugin kPlugin = {
    PENSTOCK_ONEDNN_PLUGIN_VERSION,
    library,
    isa,
    usable,
    open_matmul,
    open_conv,
    run,
    close,
    kTeam,
    [] { return int64_t(cache().size()); },
    [] { return int64_t(Cache::kCapacity); },
};

}  // namespace
}  // namespace penstock_onednn

const PenstockOnednnPlugin* penstock_onednn_plugin(void) { return &penstock_onednn::kPlugin; }
