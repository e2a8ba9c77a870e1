package bide

import (
	"errors"
	"strconv"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
)

var outcomeNames = [...]string{Aborted: "aborted", Committed: "committed", Taken: "taken"}

// latenessBuckets are seconds from a millisecond to an hour: what is late by milliseconds must be told
// from what is late by an outage.
var latenessBuckets = []float64{.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 30, 60, 300, 900, 3600}

// Metrics are the scheduler's figures. Labels are bounded: ingress topics and lanes of the
// configuration, and fixed sets of words.
type Metrics struct {
	reg          prometheus.Registerer
	accepted     *prometheus.CounterVec
	delivered    *prometheus.CounterVec
	deadLetters  *prometheus.CounterVec
	requeued     prometheus.Counter
	carried      prometheus.Counter
	lateArrivals prometheus.Counter
	lateness     prometheus.Histogram
	plans        *prometheus.CounterVec
	missing      prometheus.Counter
	laneRestarts prometheus.Counter
	clockSteps   prometheus.Counter
}

// NewMetrics makes the scheduler's metrics and registers them with reg, which may be nil.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	if reg == nil {
		reg = prometheus.NewRegistry()
	}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		reg.MustRegister(c)
		return c
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
		reg.MustRegister(c)
		return c
	}
	// Classic buckets for text scrapes, native ones for those who ask for them.
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: name, Help: help, Buckets: buckets,
			NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160,
		})
		reg.MustRegister(h)
		return h
	}
	return &Metrics{
		reg:          reg,
		accepted:     counters("bide_messages_accepted_total", "Ingress records accepted, by ingress topic.", "topic"),
		delivered:    counters("bide_messages_delivered_total", "Messages delivered to their targets, by ingress topic.", "topic"),
		deadLetters:  counters("bide_messages_dead_lettered_total", "Messages written to the dead-letter topic, by reason code.", "reason"),
		requeued:     counter("bide_messages_requeued_total", "Messages put back into their lane to be tried again later."),
		carried:      counter("bide_messages_carried_total", "Copies of waiting messages produced to the end of their lane, so that older records may go."),
		lateArrivals: counter("bide_late_arrivals_total", "Records that were due at or before the lane's cursor when they were read, and went out with the next plan."),
		lateness:     histogram("bide_delivery_lateness_seconds", "How long after due a message's delivery was committed.", latenessBuckets),
		plans:        counters("bide_plans_total", "Plans of lanes by outcome: committed, aborted (run again), taken (another owner has the lane).", "outcome"),
		laneRestarts: counter("bide_lane_restarts_total", "Times that a lane of this process started anew: another owner had committed, its ingress was replaced, or its log was corrupt."),
		missing:      counter("bide_ingress_missing_records_total", "Ingress offsets that were deleted before they were read: messages may be lost."),
		clockSteps:   counter("bide_clock_steps_total", "Steps of the wall clock."),
	}
}

// account counts a plan that was committed, and logs what an operator may look for.
func (s *Scheduler) account(lane Lane, f *flight) {
	nowMs := s.nowMs()
	var delivered, dead, late, requeued int
	var latest int64
	code := ""
	for i := range f.Items {
		item := &f.Items[i]
		switch item.Fate.Kind {
		case Deliver:
			delivered++
			// What came with a due in the past was not late before it came.
			lateMs := max(0, nowMs-max(item.DueMs, item.TimestampMs))
			s.metrics.lateness.Observe(float64(lateMs) / 1000)
			if lateMs >= lateMsLogged {
				late++
				latest = max(latest, lateMs)
			}
		case DeadLetter:
			dead++
			code = item.Fate.Rejection.Code
			s.metrics.deadLetters.WithLabelValues(code).Inc()
			s.logger.Debug("dead letter", zap.Stringer("lane", lane), zap.Int64("offset", item.Offset), zap.String("code", code), zap.String("reason", item.Fate.Rejection.Reason))
		case Requeue:
			requeued++
			s.metrics.requeued.Inc()
			s.logger.Debug("requeued", zap.Stringer("lane", lane), zap.Int64("offset", item.Offset), zap.Int("attempt", item.Fate.Attempt), zap.Int64("untilMs", item.Fate.UntilMs))
		case Carry:
			s.metrics.carried.Inc()
		case Leave: // it waits on
		}
	}
	s.metrics.delivered.WithLabelValues(lane.Topic).Add(float64(delivered))
	if dead > 0 {
		s.logger.Warn("dead letters written", zap.Stringer("lane", lane), zap.Int("count", dead), zap.String("lastCode", code))
	}
	if requeued > 0 {
		s.logger.Warn("messages requeued, for their targets cannot be written", zap.Stringer("lane", lane), zap.Int("count", requeued))
	}
	if late > 0 {
		s.logger.Info("delivered late", zap.Stringer("lane", lane), zap.Int("count", late), zap.Int64("latestMs", latest))
	}
}

// lateMsLogged is from when on a late delivery is worth a log line.
const lateMsLogged = 1000

// observe registers what is read from the scheduler when it is scraped.
func (m *Metrics) observe(s *Scheduler) {
	gauge := func(name, help string, f func() float64) {
		m.register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, f))
	}
	counter := func(name, help string, f func() float64) {
		m.register(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, f))
	}
	wheel := s.timers.wheel
	gauge("bide_wheel_timers", "Timers in the wheel: one for each lane and millisecond with something due within the horizon.", func() float64 { return float64(wheel.Stats().Timers) })
	gauge("bide_wheel_overflow_wheels", "Overflow wheels in use.", func() float64 { return float64(wheel.Stats().OverflowWheels) })
	counter("bide_wheel_cascades_total", "Timers moved from an overflow wheel to one below.", func() float64 { return float64(wheel.Stats().Cascades) })
	counter("bide_wheel_expired_total", "Timers that expired.", func() float64 { return float64(wheel.Stats().Expired) })
	counter("bide_wheel_wakeups_total", "How often the wheel's loop woke.", func() float64 { return float64(wheel.Stats().Wakeups) })
	flag := func(name, help string, f *atomic.Bool) {
		gauge(name, help, func() float64 {
			if f.Load() {
				return 1
			}
			return 0
		})
	}
	flag("bide_disk_full", "1 while reading is paused for lack of disk space.", &s.diskFull)
	flag("bide_group_joined", "1 while the process is a member of the group; without it nothing is delivered, and no lane has metrics.", &s.joined)
	m.register(newLaneCollector(s))
}

// register adds a collector; the second scheduler of a registry shares the first one's.
func (m *Metrics) register(c prometheus.Collector) {
	if err := m.reg.Register(c); err != nil && !errors.As(err, new(prometheus.AlreadyRegisteredError)) {
		panic(err)
	}
}

// laneCollector reports on the lanes that are assigned when it is scraped.
type laneCollector struct {
	s                                                       *Scheduler
	waiting, overdue, state, next, low, uncommitted, unread *prometheus.Desc
}

func newLaneCollector(s *Scheduler) *laneCollector {
	desc := func(name, help string, more ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, append([]string{"topic", "partition"}, more...), nil)
	}
	return &laneCollector{
		s:           s,
		waiting:     desc("bide_waiting_messages", "Messages of the lane in the log."),
		overdue:     desc("bide_oldest_overdue_seconds", "How late the lane's oldest waiting message is; 0 where none is due."),
		state:       desc("bide_lane_state", "1 for the state that the lane is in: assigned, catching-up, rebuilding, delivering or stopped.", "state"),
		next:        desc("bide_lane_next_offset", "Ingress offset that the lane has committed."),
		low:         desc("bide_lane_low_offset", "Ingress offset below which every message is settled."),
		unread:      desc("bide_lane_unread_offsets", "Offsets that must be read before the lane delivers: catching up, or a rebuild."),
		uncommitted: desc("bide_lane_uncommitted_offsets", "Offsets accepted and not committed yet."),
	}
}

// Describe implements [prometheus.Collector].
func (c *laneCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.waiting, c.overdue, c.state, c.next, c.low, c.uncommitted, c.unread} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (c *laneCollector) Collect(ch chan<- prometheus.Metric) {
	for _, l := range c.s.Status().Lanes {
		labels := []string{l.Lane.Topic, strconv.Itoa(int(l.Lane.Partition))}
		gauge := func(d *prometheus.Desc, v float64, more ...string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, append(labels, more...)...)
		}
		gauge(c.waiting, float64(l.Waiting))
		gauge(c.overdue, float64(l.OverdueMs)/1000)
		if l.Loaded {
			gauge(c.next, float64(l.Next))
			gauge(c.low, float64(l.Low))
			gauge(c.uncommitted, float64(max(0, l.Read-l.Next)))
			gauge(c.unread, float64(max(0, l.Gate-l.Read)))
		}
		for state := laneAssigned; state <= laneStopped; state++ {
			v := 0.0
			if l.State == state.String() {
				v = 1
			}
			gauge(c.state, v, state.String())
		}
	}
}
