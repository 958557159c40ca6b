#include "server/metrics_exporter.h"

#include <dlfcn.h>
#include <netdb.h>
#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/host_port.h"
#include "server/metrics_families.h"

// civetweb starts its threads with stacks of 100 KiB, from which glibc takes the static TLS of
// every library that is loaded: with cublasLt nothing is left and the listener does not start. Give
// every such thread 1 MiB.
extern "C" int pthread_attr_setstacksize(pthread_attr_t* attr, size_t size) {
  using Function = int (*)(pthread_attr_t*, size_t);
  static const auto next =
      reinterpret_cast<Function>(dlsym(RTLD_NEXT, "pthread_attr_setstacksize"));
  return next(attr, std::max<size_t>(size, 1 << 20));
}

namespace augur::server {
namespace {

class Collector final : public prometheus::Collectable {
 public:
  Collector(const FrontStats* front, std::string version)
      : front_(front), version_(std::move(version)) {}

  // Once; scrapes that run meanwhile see all of it or nothing.
  void SetModel(const ExportedModel& model) {
    model_ = model;
    has_model_.store(true, std::memory_order_release);
  }

  std::vector<prometheus::MetricFamily> Collect() const override {
    std::vector<prometheus::MetricFamily> families;
    AppendFrontFamilies(*front_, version_, &families);
    if (has_model_.load(std::memory_order_acquire)) {
      AppendEngineFamilies(model_, &families);
      AppendRouterFamilies(model_, &families);
    }
    return families;
  }

 private:
  const FrontStats* const front_;
  const std::string version_;
  ExportedModel model_;
  std::atomic<bool> has_model_{false};
};

// Opens and drops a connection to `place`. Best effort.
void Knock(const HostPort& place, int port) {
  const bool bracketed = place.host.front() == '[';
  const std::string host = bracketed ? place.host.substr(1, place.host.size() - 2) : place.host;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &found) != 0) return;
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd >= 0) {
    // In progress is good enough: the listener wakes up either way.
    static_cast<void>(connect(fd, found->ai_addr, found->ai_addrlen));
    close(fd);
  }
  freeaddrinfo(found);
}

// Several workers and a short patience: connections that send nothing must not keep a scraper
// waiting. A hundred of them hold it up for 7 s, which is less than Prometheus waits.
std::vector<std::string> OptionsFor(const std::string& listen) {
  return {"listening_ports", listen, "num_threads", "16", "request_timeout_ms", "1000"};
}

}  // namespace

class MetricsExporter::Listener {
 public:
  Listener(const std::string& listen, const FrontStats* front, const std::string& version)
      : collector_(std::make_shared<Collector>(front, version)), exposer_(OptionsFor(listen)) {
    exposer_.RegisterCollectable(collector_);
  }

  Collector& collector() { return *collector_; }
  int port() const { return exposer_.GetListeningPorts().at(0); }

 private:
  std::shared_ptr<Collector> collector_;  // shared: the exposer takes a weak_ptr
  prometheus::Exposer exposer_;
};

absl::StatusOr<std::unique_ptr<MetricsExporter>> MetricsExporter::Start(const std::string& listen,
                                                                        const std::string& version,
                                                                        const FrontStats* front) {
  const absl::StatusOr<HostPort> place = ParseHostPort(listen);
  if (!place.ok()) return place.status();
  // The exposer's only way to say that it cannot listen is an exception; it goes no further than
  // here.
  try {
    auto listener = std::make_unique<Listener>(listen, front, version);
    const int port = listener->port();
    return std::unique_ptr<MetricsExporter>(
        new MetricsExporter(std::move(listener), port, FormatHostPort(place->host, port)));
  } catch (const std::exception&) {
    return absl::AlreadyExistsError(
        absl::StrCat("cannot listen for metrics on ", listen,
                     ": the port is in use or the address is not this machine's"));
  }
}

MetricsExporter::MetricsExporter(std::unique_ptr<Listener> listener, int port, std::string address)
    : listener_(std::move(listener)), port_(port), address_(std::move(address)) {}

MetricsExporter::~MetricsExporter() { Close(); }

void MetricsExporter::SetModel(const ExportedModel& model) {
  listener_->collector().SetModel(model);
}

// civetweb looks at its stop flag every 2 s, or when a connection comes: so give it some.
void MetricsExporter::Close() {
  if (listener_ == nullptr) return;
  const absl::StatusOr<HostPort> place = ParseHostPort(address_);
  std::atomic<bool> closed{false};
  std::thread knocker([&] {
    while (place.ok() && !closed.load()) {
      Knock(*place, port_);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  });
  listener_.reset();
  closed.store(true);
  knocker.join();
}

}  // namespace augur::server
