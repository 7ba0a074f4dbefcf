package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const pollMax = 100 * time.Millisecond

var balancers = map[string]kgo.GroupBalancer{
	"range":              kgo.RangeBalancer(),
	"roundrobin":         kgo.RoundRobinBalancer(),
	"cooperative-sticky": kgo.CooperativeStickyBalancer(),
}

// groupMember is franz-go as a member of a group. What it takes and tells: clients/python/member_loop.py.
type groupMember struct {
	topic      string
	client     *kgo.Client
	mu         sync.Mutex
	generation int32
	owned      map[int32]bool
	unsaved    []*kgo.Record // Read and not committed; a refused commit is tried again while it still owns them.
}

type facts map[string]any

func (m *groupMember) tell(event string, told facts) {
	line := facts{"event": event, "at": time.Now().UnixMilli()}
	for name, value := range told {
		line[name] = value
	}
	encoded, err := json.Marshal(line)
	if err != nil {
		panic(err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	fmt.Println(string(encoded))
}

func (m *groupMember) onAssigned(_ context.Context, client *kgo.Client, assigned map[string][]int32) {
	for _, partition := range assigned[m.topic] {
		m.owned[partition] = true
	}
	partitions := []int32{}
	for partition := range m.owned {
		partitions = append(partitions, partition)
	}
	slices.Sort(partitions)
	member, generation := client.GroupMetadata()
	m.generation = generation
	m.tell("assigned", facts{"generation": generation, "member": member, "partitions": partitions})
}

func (m *groupMember) onRevoked(_ context.Context, _ *kgo.Client, revoked map[string][]int32) {
	for _, partition := range revoked[m.topic] {
		delete(m.owned, partition)
	}
	m.unsaved = slices.DeleteFunc(m.unsaved, func(record *kgo.Record) bool { return !m.owned[record.Partition] })
	m.tell("revoked", facts{"partitions": append([]int32{}, revoked[m.topic]...)})
}

func (m *groupMember) commit() {
	offsets := map[string]int64{}
	for _, record := range m.unsaved {
		offsets[strconv.Itoa(int(record.Partition))] = record.Offset + 1
	}
	told := facts{"generation": m.generation, "offsets": offsets}
	if err := m.client.CommitRecords(context.Background(), m.unsaved...); err != nil {
		told["error"] = err.Error()
		m.tell("refused", told)
	} else {
		m.unsaved = nil
		m.tell("committed", told)
	}
}

func listen() <-chan string {
	commands := make(chan string, 10)
	go func() {
		lines := bufio.NewScanner(os.Stdin)
		for lines.Scan() {
			commands <- strings.TrimSpace(lines.Text())
		}
		os.Exit(0)
	}()
	return commands
}

func runMember(settings []string) error {
	sessionMs, err := strconv.Atoi(settings[5])
	if err != nil {
		return err
	}
	session := time.Duration(sessionMs) * time.Millisecond
	m := &groupMember{topic: settings[2], generation: -1, owned: map[int32]bool{}}
	m.client, err = kgo.NewClient(
		kgo.SeedBrokers(strings.Split(settings[0], ",")...),
		kgo.ConsumerGroup(settings[1]),
		kgo.ConsumeTopics(settings[2]),
		kgo.ClientID(settings[3]),
		kgo.Balancers(balancers[settings[4]]),
		kgo.SessionTimeout(session),
		kgo.HeartbeatInterval(session/6),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchMaxWait(pollMax),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(), // Callbacks come between two polls, as with the other clients.
		kgo.OnPartitionsAssigned(m.onAssigned),
		kgo.OnPartitionsRevoked(m.onRevoked),
		kgo.OnPartitionsLost(m.onRevoked),
	)
	if err != nil {
		return err
	}
	commands := listen()
	shallHold, isHolding := false, false
	for {
		command := ""
		if isHolding {
			select {
			case command = <-commands:
			case <-time.After(pollMax):
			}
		} else {
			select {
			case command = <-commands:
			default:
			}
		}
		switch {
		case command == "leave":
			m.client.CloseAllowingRebalance()
			m.tell("left", nil)
			return nil
		case command == "hold":
			shallHold = true
		case command == "commit":
			isHolding = false
			m.commit()
			m.client.AllowRebalance()
		}
		if isHolding {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), pollMax)
		fetches := m.client.PollRecords(ctx, 100)
		cancel()
		records := fetches.Records()
		if len(records) > 0 {
			told := [][]any{}
			for _, record := range records {
				told = append(told, []any{record.Partition, record.Offset, string(record.Value)})
			}
			m.tell("records", facts{"generation": m.generation, "records": told})
			m.unsaved = append(m.unsaved, records...)
			if shallHold {
				shallHold, isHolding = false, true
				m.tell("holding", nil)
				continue
			}
		}
		if len(m.unsaved) > 0 {
			m.commit()
		}
		m.client.AllowRebalance()
	}
}
